"""What the answers of all routes that generate text have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from edgespec.api.result import GenerationResult
from edgespec.server.service import Part

Json = dict[str, Any]


class Reply(ABC):
    """The answer to one request, whole or as the events of a stream.

    Attributes:
        last: events after the last one that has content.
    """

    last: ClassVar[tuple[str, ...]] = ("[DONE]",)

    def about(self, body: Any) -> None:
        """Takes the body of the request, before the text begins."""
        self._body = body

    @abstractmethod
    def whole(self, result: GenerationResult) -> Json:
        """Returns the response in one piece."""

    @abstractmethod
    def opening(self) -> list[Json]:
        """Returns the events before the first part."""

    @abstractmethod
    def part(self, part: Part) -> Json:
        """Returns the event of a part."""

    @abstractmethod
    def closing(self, result: GenerationResult, reported: int, usage: bool) -> list[Json]:
        """Returns the events after the last part.

        Args:
            result: finished text.
            reported: number of tokens whose log-probabilities were in parts.
            usage: whether the client asked for the numbers of tokens.
        """
