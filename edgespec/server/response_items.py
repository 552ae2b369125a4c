"""The items of a Responses API conversation, and their conversion to the messages of a chat.

https://platform.openai.com/docs/api-reference/responses/create describes the items.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Tag

from edgespec.server.fields import LONG, Fields

Json = dict[str, Any]


class _Noted(Fields):
    """Base of items and their parts, in which unknown fields are ignored, as in messages."""

    model_config = ConfigDict(extra="ignore")


class InputText(_Noted):
    """A part of a message, or of what a function returned."""

    type: Literal["input_text", "output_text"]
    text: str


class ReasoningText(_Noted):
    """A part of what a model thought."""

    type: Literal["reasoning_text"]
    text: str


Content = str | Annotated[list[InputText], LONG]


class Item(_Noted, ABC):
    """An item of a conversation."""

    @abstractmethod
    def extend(self, messages: list[Json]) -> None:
        """Adds the item to the messages of a chat."""


class MessageItem(Item):
    """What somebody said."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content

    def extend(self, messages: list[Json]) -> None:
        """Adds a message; one system message takes all that stands first.

        Many templates accept a system message at the beginning only.
        """
        text = _plain(self.content)
        if self.role == "assistant":
            answer = _answer(messages)
            if answer["content"] is not None or "tool_calls" in answer:
                answer = _new_answer(messages)
            answer["content"] = text
        elif self.role == "user" or not _all_system(messages):
            messages.append({"role": self.role, "content": text})
        else:
            add_system(messages, text)


class ReasoningItem(Item):
    """What the model thought before it answered, as it came from the server."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], LONG] | None = None

    def extend(self, messages: list[Json]) -> None:
        """Adds a new answer with the thoughts."""
        if text := "".join(part.text for part in self.content or ()):
            _new_answer(messages)["reasoning_content"] = text


class FunctionCallItem(Item):
    """A function that the model called."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def extend(self, messages: list[Json]) -> None:
        """Adds the call to the answer that it is a part of."""
        called = {"name": self.name, "arguments": self.arguments}
        call = {"id": self.call_id, "type": "function", "function": called}
        _answer(messages).setdefault("tool_calls", []).append(call)


class FunctionOutputItem(Item):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content

    def extend(self, messages: list[Json]) -> None:
        """Adds a message of a tool."""
        text = _plain(self.output)
        messages.append({"role": "tool", "tool_call_id": self.call_id, "content": text})


_KINDS = ("message", "reasoning", "function_call", "function_call_output")


def _kind(item: Any) -> str | None:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)
    return _tag(kind) if kind in _KINDS else None


def _tag(kind: str) -> str:
    # As pydantic calls a member of a union, which `bodies` leaves out of a field's name.
    return f"literal[{kind}]"


AnyItem = Annotated[
    Annotated[MessageItem, Tag(_tag("message"))]
    | Annotated[ReasoningItem, Tag(_tag("reasoning"))]
    | Annotated[FunctionCallItem, Tag(_tag("function_call"))]
    | Annotated[FunctionOutputItem, Tag(_tag("function_call_output"))],
    Discriminator(
        _kind,
        custom_error_type="item",
        custom_error_message=f"Input should be an item of type {', '.join(_KINDS)}",
    ),
]
"""An item by its `type`; one without a type is a message."""


def add_system(messages: list[Json], text: str) -> None:
    """Adds to the system message at the beginning of a conversation, or begins with one."""
    if messages:
        text = f"{messages.pop()['content']}\n\n{text}"
    messages.append({"role": "system", "content": text})


def chat_messages(instructions: str | None, given: str | Sequence[Item]) -> list[Json]:
    """Returns a conversation as the messages of a chat.

    Args:
        instructions: what a system message says first; None for nothing.
        given: what the user says, or the items of a conversation.
    """
    messages: list[Json] = []
    if instructions is not None:
        add_system(messages, instructions)
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for item in given:
        item.extend(messages)
    return messages


def _plain(content: str | list[InputText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _all_system(messages: list[Json]) -> bool:
    return all(message["role"] == "system" for message in messages)


def _answer(messages: list[Json]) -> Json:
    """Returns the answer that is being given, or begins one."""
    if messages and messages[-1]["role"] == "assistant":
        return messages[-1]
    return _new_answer(messages)


def _new_answer(messages: list[Json]) -> Json:
    messages.append({"role": "assistant", "content": None})
    return messages[-1]
