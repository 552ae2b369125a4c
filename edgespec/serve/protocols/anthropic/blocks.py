"""Content blocks of a conversation, and the messages that they are for a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Tag

from edgespec.llm.images import DataUrl
from edgespec.runtime.text.tools.calls import ToolCall
from edgespec.serve.protocols.fields import LONG, Fields, Json, kinds_left_out, member
from edgespec.serve.protocols.messages import kinds

_BILLING = "x-anthropic-billing-header:"
"""How a block of Claude Code's system prompt begins that is for Anthropic, and new in each request.

A model has nothing from it, and a prompt that began otherwise each time would be read anew each
time.
"""


class TextBlock(Fields):
    """A text."""

    type: Literal["text"]
    text: str


class Base64Source(Fields):
    """A file in base64."""

    type: Literal["base64"]
    media_type: str
    data: str


class UrlSource(Fields):
    """Where a file is: in a data URL, for nothing is fetched."""

    type: Literal["url"]
    url: str


class ImageBlock(Fields):
    """An image."""

    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag(member("base64"))] | Annotated[UrlSource, Tag(member("url"))],
        kinds("base64", "url", what="a source"),
    ]

    @property
    def part(self) -> Json:
        """The part of a message."""
        source = self.source
        url = source.url if isinstance(source, UrlSource) else f"data:;base64,{source.data}"
        return {"type": "image", "image": DataUrl(url)}


class TextSource(Fields):
    """The text of a document."""

    type: Literal["text"]
    data: str


class DocumentBlock(Fields):
    """A document of plain text."""

    type: Literal["document"]
    source: Annotated[
        Annotated[TextSource, Tag(member("text"))], kinds("text", what="a document's source")
    ]
    title: str | None = None


class ThinkingBlock(Fields):
    """What the model thought before it answered."""

    type: Literal["thinking"]
    thinking: str


class ToolUseBlock(Fields):
    """A tool that the model called."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Json


Shown = TextBlock | ImageBlock | DocumentBlock
"""What users and tools show."""

_ShownBlock = Annotated[
    Annotated[TextBlock, Tag(member("text"))]
    | Annotated[ImageBlock, Tag(member("image"))]
    | Annotated[DocumentBlock, Tag(member("document"))],
    kinds("text", "image", "document", what="a block"),
]


class ToolResultBlock(Fields):
    """What a tool returned."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[_ShownBlock], LONG] | None = None
    is_error: bool | None = None


Block = Shown | ThinkingBlock | ToolUseBlock | ToolResultBlock

# Of Anthropic's own models and tools; they say nothing to others.
_OWN = (
    "redacted_thinking",
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "container_upload",
)
_OWN_LEFT_OUT = kinds_left_out("a message has a block", _OWN.__contains__)


AnyBlock = Annotated[
    Annotated[TextBlock, Tag(member("text"))]
    | Annotated[ImageBlock, Tag(member("image"))]
    | Annotated[DocumentBlock, Tag(member("document"))]
    | Annotated[ThinkingBlock, Tag(member("thinking"))]
    | Annotated[ToolUseBlock, Tag(member("tool_use"))]
    | Annotated[ToolResultBlock, Tag(member("tool_result"))],
    kinds("text", "image", "document", "thinking", "tool_use", "tool_result", what="a block"),
]
"""A block by its `type`."""

System = str | Annotated[list[TextBlock], LONG]


class BlockMessage(Fields):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[AnyBlock], LONG, _OWN_LEFT_OUT]

    @property
    def blocks(self) -> Sequence[Block]:
        """What it says; nothing for an empty text."""
        if isinstance(self.content, str):
            return [TextBlock(type="text", text=self.content)] if self.content else []
        return self.content


def messages_of_blocks(system: System | None, given: Sequence[BlockMessage]) -> list[Json]:
    """Returns a conversation as messages for `LLM.chat`.

    Args:
        system: what the system says first.
        given: the messages.
    """
    said = _system_text(system)
    messages: list[Json] = [{"role": "system", "content": said}] if said else []
    for message in given:
        if message.role == "assistant":
            messages.append(_answer(message.blocks))
        else:
            messages += _asked(message)
    return messages


def _system_text(system: System | None) -> str:
    texts = [system or ""] if isinstance(system, str | None) else [each.text for each in system]
    return "\n\n".join(text for text in texts if text and not text.startswith(_BILLING))


def _answer(blocks: Sequence[Block]) -> Json:
    thoughts = [each.thinking for each in blocks if isinstance(each, ThinkingBlock)]
    calls = [
        ToolCall(each.id, each.name, json.dumps(each.input, ensure_ascii=False)).message
        for each in blocks
        if isinstance(each, ToolUseBlock)
    ]
    further: Json = {"reasoning_content": "".join(thoughts), "tool_calls": calls}
    content = "".join(each.text for each in blocks if isinstance(each, TextBlock))
    return {"role": "assistant", "content": content, **{k: v for k, v in further.items() if v}}


def _asked(message: BlockMessage) -> list[Json]:
    """Returns what a user says as messages: results of tools are messages of their own."""
    found: list[Json] = []
    said: list[Shown] = []

    def end() -> None:
        if said:
            found.append({"role": message.role, "content": _content(said)})
            said.clear()

    for block in message.blocks:
        if isinstance(block, ToolResultBlock):
            end()
            told: Sequence[Shown] | str = block.content or ""
            content = told if isinstance(told, str) else _content(told)
            found.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
        elif isinstance(block, Shown):
            said.append(block)
    end()
    return found or [{"role": message.role, "content": ""}]


def _content(blocks: Sequence[Shown]) -> str | list[Json]:
    """Returns what blocks show: one text, or parts if there are images."""
    if not any(isinstance(each, ImageBlock) for each in blocks):
        return "\n\n".join(map(_text, blocks))
    return [
        each.part if isinstance(each, ImageBlock) else {"type": "text", "text": _text(each)}
        for each in blocks
    ]


def _text(block: Any) -> str:
    if isinstance(block, DocumentBlock):
        return "\n\n".join(filter(None, (block.title, block.source.data)))
    return str(block.text)
