"""OpenAI's predicted outputs: a text that the client expects, and how much of it came true.

<https://platform.openai.com/docs/guides/predicted-outputs>
"""

from __future__ import annotations

from typing import Annotated, Literal

from edgespec.api.result import GenerationResult
from edgespec.server.fields import LONG, Fields


class PredictedPart(Fields):
    """A part of a predicted text."""

    type: Literal["text"]
    text: str


class PredictedOutput(Fields):
    """The text that the client expects, such as a file before an edit; it may be empty."""

    type: Literal["content"]
    content: str | Annotated[list[PredictedPart], LONG]

    @property
    def text(self) -> str:
        """The whole text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


def prediction_details(result: GenerationResult) -> dict[str, int]:
    """Returns the fields of `completion_tokens_details` that concern a prediction."""
    return {
        "accepted_prediction_tokens": result.accepted_prediction_tokens or 0,
        "rejected_prediction_tokens": result.rejected_prediction_tokens or 0,
    }
