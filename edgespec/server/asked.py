"""What all requests for texts have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any

from pydantic import Field

from edgespec.api.generation import GenerationStream
from edgespec.api.llm import LLM
from edgespec.api.loading import MAX_DRAFT_TOKENS
from edgespec.server.fields import Fields, Text, Unset

SEEDS = 1 << 64
"""The number of seeds."""


class StreamOptions(Fields):
    """Options of a streamed response."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # chunks are never padded


class Speculative(Fields):
    """Draft options of a text, which never change it."""

    draft: str | None = None
    num_draft_tokens: Annotated[int, Field(ge=0, le=MAX_DRAFT_TOKENS)] | None = None


class Asked(Fields, ABC):
    """What all requests for texts have: how they are sampled and drafted."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-1, lt=SEEDS), Unset] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1), Unset] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    speculative: Speculative | None = None
    regex: str | None = None
    grammar: str | None = None
    cache_prompt: bool | None = None
    # Fields for storage, scheduling and caching on OpenAI's servers; no effect here.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None

    @abstractmethod
    def texts(self, llm: LLM) -> list[GenerationStream]:
        """Creates the streams of the texts, one for each choice, without starting them.

        Raises:
            InputError: if the prompt is invalid, an option is out of range, or the draft source was
                not loaded.
            RequestError: if fields contradict each other.
        """
