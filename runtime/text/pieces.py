"""What an answer consists of, whole and piece by piece: text, reasoning and tool calls."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class CallPiece:
    """A piece of a tool call.

    Attributes:
        index: number of the call in the answer, from 0.
        arguments: piece of the arguments' JSON.
        id: identifier, in the first piece of a call; else None.
        name: name of the function, in the first piece; else None.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Piece:
    """What a piece of a text adds to an answer.

    Attributes:
        text: text for the user.
        reasoning: reasoning.
        calls: pieces of tool calls.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()

    def __add__(self, other: Piece) -> Piece:
        calls, further = self.calls, other.calls
        if calls and further and calls[-1].id is None and further[0].id is None:
            # Without an id, both are arguments of the same call.
            joined = replace(calls[-1], arguments=calls[-1].arguments + further[0].arguments)
            calls, further = (*calls[:-1], joined), further[1:]
        return Piece(self.text + other.text, self.reasoning + other.reasoning, (*calls, *further))

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls)
