"""The request bodies of OpenAI's API, and their conversion to texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from math import inf
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from edgespec.llm.keywords import SamplingKeywords
from edgespec.llm.llm import LLM
from edgespec.llm.options import in_conversation
from edgespec.llm.stream import Stream
from edgespec.serve.protocols.adapters import AdapterScale, scales_by_name
from edgespec.serve.protocols.fields import (
    LONG,
    Count,
    Fields,
    Int,
    Json,
    Unlimited,
    option_field,
)
from edgespec.serve.protocols.messages import PredictedOutput, ResponseFormat, content_text
from edgespec.serve.protocols.protocol import TextBody
from edgespec.serve.protocols.sampling import SEEDS, PenalizedSampling, Sampling
from edgespec.serve.protocols.unsupported import UnsupportedFields
from edgespec.serve.refusals import RequestError

MAX_CHOICES = 128  # as in OpenAI's API
_Bias = Annotated[float, Field(ge=-100, le=100)]
# As llama.cpp has it; false is never.
Milliseconds = Annotated[float, Field(le=1e9)]
_Biases = Annotated[list[tuple[int, float | Literal[False]]], LONG]


class StreamOptions(Fields):
    """Options of a streamed response."""

    include_usage: bool | None = None
    include_obfuscation: Any = None  # chunks are never padded


class Speculative(Fields):
    """Draft options of a text, which never change it."""

    draft: str | None = None
    num_draft_tokens: Annotated[Int, option_field("num_assistant_tokens")] | None = None


class RequestBody(Sampling, UnsupportedFields, TextBody):
    """What all requests of OpenAI's API for texts have."""

    model: str | None = None
    stream_options: StreamOptions | None = None
    repetition_penalty: Annotated[float, option_field("repetition_penalty")] | None = None
    speculative: Speculative | None = None
    lora: Annotated[list[AdapterScale], LONG] | None = None
    regex: Annotated[str, option_field("regex")] | None = None
    grammar: Annotated[str, option_field("grammar")] | None = None
    stop_loops: bool | None = None
    prompt_cache_key: str | None = None
    # For storage, scheduling and caching on others' servers; whatever they hold has no effect here.
    cache_prompt: Any = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    moderation: Any = None

    @property
    def cache_key(self) -> str | None:
        """See `TextBody`."""
        return self.prompt_cache_key or None

    def adapters(self, llm: LLM) -> Mapping[str, float] | None:  # noqa: D102 - of the base class
        if not self.lora:
            return super().adapters(llm)
        names = [each.name for each in llm.options.adapter_files]
        return scales_by_name(self.lora, names, "lora")

    def options(self, usual: SamplingKeywords) -> Json:
        """Returns options of the text.

        Args:
            usual: how it is sampled as far as the request does not say.
        """
        drafts = self.speculative or Speculative()
        given = self.sampling | self.given("repetition_penalty", "regex", "grammar")
        return {
            **in_conversation(usual, given),
            "stop_loops": bool(self.stop_loops),
            "draft_source": drafts.draft,
            "num_assistant_tokens": drafts.num_draft_tokens,
        }


class TextRequest(PenalizedSampling, RequestBody):
    """Fields that completions and chat have in common."""

    # Here and in Ollama's API, and in llama.cpp's.
    max_tokens: Count | Unlimited | None = Field(
        None, validation_alias=AliasChoices("max_tokens", "n_predict")
    )
    n: Annotated[Int, Field(ge=1, le=MAX_CHOICES)] | None = None
    logit_bias: dict[str, _Bias] | _Biases | None = None
    response_format: ResponseFormat | None = None
    prediction: PredictedOutput | None = None
    json_schema: Json | None = None
    t_max_predict_ms: Milliseconds | None = None
    # What only matters to a sampler of llama.cpp's that is not here, or to one that keeps many.
    dynatemp_exponent: Any = None
    min_keep: Any = None
    # Samplers have a fixed order here, and slots are chosen by what they hold.
    samplers: Any = None
    id_slot: Any = None
    timings_per_token: Any = None
    return_progress: bool | None = None  # of the prompt, in a stream

    @property
    def prompts(self) -> int:
        """The number of prompts."""
        return 1

    @property
    def choices(self) -> int:
        """The number of texts, of all prompts together."""
        return self.prompts * (self.n or 1)

    def texts(self, llm: LLM) -> list[Stream]:  # noqa: D102 - of the base class
        [first] = super().texts(llm)
        # Choices of the same seed would be the same text.
        seeds = (
            None if self.seed is None else (self.seed + choice) % SEEDS
            for choice in range(1, self.n or 1)
        )
        return [first, *map(first.again, seeds)]

    @property
    def _structure(self) -> Json:
        """The option for the form of the text."""
        asked = {} if self.response_format is None else self.response_format.structure
        if not self.json_schema:
            return asked
        if asked:
            raise RequestError(
                400, "json_schema and response_format are given: drop one", param="json_schema"
            )
        return {"json_schema": self.json_schema}

    @property
    def _biases(self) -> list[tuple[int | str, float]]:
        bias = self.logit_bias or {}
        pairs = bias.items() if isinstance(bias, dict) else bias
        return [(id_, -inf if by is False else by) for id_, by in pairs]

    @property
    def _are_of_last_tokens(self) -> bool:
        return self.repeat_penalty is not None and self.repetition_penalty is None

    def usual(self, llm: LLM) -> SamplingKeywords:
        """Returns how the text is sampled as far as the request does not say."""
        return llm.sampling

    @property
    @abstractmethod
    def tokens(self) -> int | None:
        """The maximum number of new tokens; None for as many as fit the context."""

    @property
    def likeliest(self) -> int | None:
        """The number of likeliest tokens to report per token; None for no log-probabilities."""
        return None

    def options(self, usual: SamplingKeywords) -> Json:
        """See `RequestBody`."""
        expected = self.prediction
        most = self.t_max_predict_ms
        further: Json = {
            "max_new_tokens": self.tokens,
            "logprobs": self.likeliest,
            "prediction": None if expected is None else content_text(expected.content),
            "max_time": most / 1000 if most is not None and most > 0 else None,
            "logit_bias": self._biases,
        }
        return super().options(usual) | further | self._structure
