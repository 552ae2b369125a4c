"""What a route answers with: the contract between `endpoint` and the forms of the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from edgespec.api.llm import LLM
from edgespec.api.result import GenerationResult
from edgespec.server.answers import Json, TokenTexts
from edgespec.server.refusals import RequestError
from edgespec.server.service import Part


@dataclass(frozen=True)
class Origin:
    """Where the answers of a server come from.

    Attributes:
        model: name of the model for clients.
        fingerprint: fingerprint of the bundle.
        texts: text of single tokens.
    """

    model: str
    fingerprint: str
    texts: TokenTexts

    @classmethod
    def of(cls, llm: LLM, model: str) -> Origin:
        """Returns the origin of the answers of a model with this name."""
        return cls(model, f"fp_{llm.bundle.digest[:12]}", TokenTexts(llm.tokenizer))


class Writer(ABC):
    """The answer to one request, whole or as events of a stream."""

    last: ClassVar[tuple[str, ...]] = ("[DONE]",)
    """What follows the events of a stream that did not fail."""

    @abstractmethod
    def whole(self, results: Sequence[GenerationResult]) -> Json:
        """Returns the answer in one piece."""

    @abstractmethod
    def opening(self) -> list[Json]:
        """Returns the events before the first part."""

    @abstractmethod
    def part(self, part: Part) -> list[Json]:
        """Returns the events of a part."""

    @abstractmethod
    def closing(self, results: Sequence[GenerationResult]) -> list[Json]:
        """Returns the events after the last part."""

    def failure(self, refusal: RequestError) -> Json:
        """Returns the event that ends a stream that failed on the way."""
        return refusal.body

    def name(self, _event: Json) -> str | None:
        """Returns the name that an event is sent under; None for no name."""
        return None
