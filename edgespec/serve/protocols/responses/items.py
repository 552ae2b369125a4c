"""Items of a conversation, and the messages that they are for a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Tag, TypeAdapter

from edgespec.llm.images import DataUrl
from edgespec.runtime.text.tools.calls import ToolCall
from edgespec.serve.protocols.fields import LONG, Fields, Json, member
from edgespec.serve.protocols.messages import content_text, kinds

CUSTOM_INPUT = "input"
"""The argument by which a model gives its text to a tool that takes one."""


class InputText(Fields):
    """A part of a message, or of what a function returned."""

    type: Literal["input_text", "output_text"]
    text: str


class ReasoningText(Fields):
    """A part of what a model thought."""

    type: Literal["reasoning_text"]
    text: str


class InputImage(Fields):
    """An image in a message, in a data URL."""

    type: Literal["input_image"]
    image_url: str


ContentPart = Annotated[
    Annotated[InputText, Tag(member("input_text"))]
    | Annotated[InputText, Tag(member("output_text"))]
    | Annotated[InputImage, Tag(member("input_image"))],
    kinds("input_text", "output_text", "input_image"),
]
"""A part of a message by its `type`."""


def _plain(content: str | list[InputText | InputImage]) -> str | list[Json]:
    """Returns what a message says: one text, or parts if there are images."""
    if isinstance(content, str) or not _shows(content):
        return content_text(content)
    return [
        {"type": "image", "image": DataUrl(each.image_url)}
        if isinstance(each, InputImage)
        else {"type": "text", "text": each.text}
        for each in content
    ]


def _shows(content: str | list[InputText | InputImage]) -> bool:
    """Whether there are images in a message."""
    return any(isinstance(each, InputImage) for each in content)


Content = str | Annotated[list[ContentPart], LONG]


class MessageItem(Fields):
    """What somebody said."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class ReasoningItem(Fields):
    """What the model thought before it answered, as it came from the server."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], LONG] | None = None


class FunctionCallItem(Fields):
    """A function that the model called, perhaps one of a namespace."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class FunctionOutputItem(Fields):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class CustomCallItem(Fields):
    """A tool that the model called with a text."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str


class CustomOutputItem(Fields):
    """What such a tool returned."""

    type: Literal["custom_tool_call_output"]
    call_id: str
    output: Content


Item = (
    MessageItem
    | ReasoningItem
    | FunctionCallItem
    | FunctionOutputItem
    | CustomCallItem
    | CustomOutputItem
)

_SYSTEM = ("system", "developer")

AnyItem = Annotated[
    Annotated[MessageItem, Tag(member("message"))]
    | Annotated[ReasoningItem, Tag(member("reasoning"))]
    | Annotated[FunctionCallItem, Tag(member("function_call"))]
    | Annotated[FunctionOutputItem, Tag(member("function_call_output"))]
    | Annotated[CustomCallItem, Tag(member("custom_tool_call"))]
    | Annotated[CustomOutputItem, Tag(member("custom_tool_call_output"))],
    kinds(
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        what="an item",
        usual="message",
    ),
]
"""An item by its `type`; one without a type is a message."""

ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[AnyItem])
"""Reads and writes items."""


def chat_messages(instructions: str | None, given: str | Sequence[Item]) -> list[Json]:
    """Returns a conversation as messages for `LLM.chat`.

    What systems and developers say at the beginning is one message, since many templates have a
    place for one only.

    Args:
        instructions: what the system says first; None for nothing.
        given: what the user says, or the items of a conversation.
    """
    items = as_items(given)
    first: list[str] = []
    for item in items:
        if not (isinstance(item, MessageItem) and item.role in _SYSTEM) or _shows(item.content):
            break
        first.append(content_text(item.content))
    said = first if instructions is None else [instructions, *first]
    messages = [{"role": "system", "content": "\n\n".join(said)}] if said else []
    for item in items[len(first) :]:
        _extend(messages, item)
    return [each | {"content": each["content"] or ""} for each in messages]


def as_items(given: str | Sequence[Item]) -> list[Item]:
    """Returns items of a conversation; a text is what the user says."""
    return [MessageItem(role="user", content=given)] if isinstance(given, str) else list(given)


def _extend(messages: list[Json], item: Item) -> None:
    """Adds an item to the messages of a chat; the parts of an answer are several items."""
    last: Json = messages[-1] if messages else {}
    answer: Json = {"role": "assistant", "content": None}
    begun = last.get("role") == "assistant"
    if isinstance(item, FunctionOutputItem | CustomOutputItem):
        told = _plain(item.output)
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": told})
    elif isinstance(item, MessageItem) and item.role != "assistant":
        role = "system" if item.role in _SYSTEM else item.role
        messages.append({"role": role, "content": _plain(item.content)})
    elif isinstance(item, MessageItem):
        if not begun or last["content"] is not None or "tool_calls" in last:
            messages.append(answer)
        messages[-1]["content"] = _plain(item.content)
    elif isinstance(item, FunctionCallItem | CustomCallItem):
        if not begun:
            messages.append(answer)
        messages[-1].setdefault("tool_calls", []).append(_call(item).message)
    elif text := content_text(item.content or ""):
        messages.append({**answer, "reasoning_content": text})


def _call(item: FunctionCallItem | CustomCallItem) -> ToolCall:
    if isinstance(item, CustomCallItem):
        arguments = json.dumps({CUSTOM_INPUT: item.input}, ensure_ascii=False)
        return ToolCall(item.call_id, item.name, arguments)
    return ToolCall(item.call_id, within(item.namespace, item.name), item.arguments)


def within(namespace: str | None, name: str) -> str:
    """Returns the name by which a model knows a function of a namespace, or one of none."""
    return name if not namespace else f"{namespace.rstrip('_')}__{name}"
