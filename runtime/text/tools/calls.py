"""Tool calls, as answers have them and templates show them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """A tool call of an answer, which nobody has executed.

    Attributes:
        id: identifier, for the message with the tool's result.
        name: name of the function.
        text: arguments as the model wrote them, a JSON object.
    """

    id: str
    name: str
    text: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        arguments: dict[str, Any] = json.loads(self.text)
        return arguments

    @property
    def message(self) -> dict[str, Any]:
        """The call as messages of OpenAI's API hold it."""
        function = {"name": self.name, "arguments": self.text}
        return {"id": self.id, "type": "function", "function": function}


class PlainArguments(str):
    """Arguments of a call that are no JSON object, which templates show as they are."""

    __slots__ = ()

    def items(self) -> list[tuple[str, str]]:
        """Returns them as the only argument, for templates that go through arguments."""
        return [("arguments", str(self))]
