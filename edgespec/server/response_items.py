"""The items of a Responses API conversation, and their conversion to the messages of a chat.

https://platform.openai.com/docs/api-reference/responses/create describes the items.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from edgespec.server.fields import LONG, Noted

Json = dict[str, Any]


class InputText(Noted):
    """A part of a message, or of what a function returned."""

    type: Literal["input_text", "output_text"]
    text: str


class ReasoningText(Noted):
    """A part of what a model thought."""

    type: Literal["reasoning_text"]
    text: str


Content = str | Annotated[list[InputText], LONG]


class Item(Noted, ABC):
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
        """Adds a message, or the text of an answer that has none yet."""
        text = _plain(self.content)
        if self.role != "assistant":
            messages.append({"role": self.role, "content": text})
            return
        answer = _answer(messages)
        if answer["content"] is not None or "tool_calls" in answer:
            answer = _new_answer(messages)
        answer["content"] = text


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


_SYSTEM = ("system", "developer")
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


def chat_messages(instructions: str | None, given: str | Sequence[Item]) -> list[Json]:
    """Returns a conversation as the messages of a chat.

    What systems and developers say at the beginning is one message, since many templates have a
    place for one only.

    Args:
        instructions: what the system says first; None for nothing.
        given: what the user says, or the items of a conversation.
    """
    items = [MessageItem(role="user", content=given)] if isinstance(given, str) else given
    first: list[str] = []
    for item in items:
        if not (isinstance(item, MessageItem) and item.role in _SYSTEM):
            break
        first.append(_plain(item.content))
    said = first if instructions is None else [instructions, *first]
    messages = [{"role": "system", "content": "\n\n".join(said)}] if said else []
    for item in items[len(first) :]:
        item.extend(messages)
    return messages


def _plain(content: str | list[InputText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _answer(messages: list[Json]) -> Json:
    """Returns the answer that is being given, or begins one."""
    if messages and messages[-1]["role"] == "assistant":
        return messages[-1]
    return _new_answer(messages)


def _new_answer(messages: list[Json]) -> Json:
    messages.append({"role": "assistant", "content": None})
    return messages[-1]
