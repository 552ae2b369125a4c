"""What tools give back, as a model reads it: text of a bounded length, and images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from mcp import types

_MOST_CHARACTERS = 1 << 16  # of a result, however long a context is
_CHARACTERS = 2  # of a result for each token of a context: about half of it at most
_MOST_IMAGES = 8
_IMAGES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp")


def most_characters(context: int) -> int:
    """Returns the length of the longest result that a model reads.

    Args:
        context: length of its context in tokens.
    """
    return min(_MOST_CHARACTERS, _CHARACTERS * context)


@dataclass(frozen=True)
class ToolResult:
    """What a call gave back.

    Attributes:
        text: its texts, and what was left out.
        images: its images, as data URLs.
        failed: whether the tool, or its server, says that it went wrong.
    """

    text: str
    images: tuple[str, ...] = ()
    failed: bool = False

    def told(self, sees_images: bool) -> str:
        """Returns its text, with a note of images that a model does not see."""
        note = f"[images that this model cannot see: {len(self.images)}]"
        notes = [note] if self.images and not sees_images else []
        text = "\n".join([*([self.text] if self.text else []), *notes])
        return text or ("" if self.images else "The tool has returned nothing.")

    def content(self, sees_images: bool) -> str | list[dict[str, Any]]:
        """Returns the content of a message of the role tool."""
        text = self.told(sees_images)
        if not self.images or not sees_images:
            return text
        shown = [{"type": "image_url", "image_url": {"url": url}} for url in self.images]
        return [*([{"type": "text", "text": text}] if text else []), *shown]


def result_of(found: types.CallToolResult, most: int) -> ToolResult:
    """Returns what a model reads of a result.

    Args:
        found: the result.
        most: largest number of characters; what follows them is left out, and the model told so.
    """
    images = [each for each in found.content if _is_image(each)]
    texts = [text for each in found.content for text in _texts(each)]
    if not found.content and found.structured_content is not None:
        texts = [json.dumps(found.structured_content, ensure_ascii=False)]
    if len(images) > _MOST_IMAGES:
        texts.append(f"[further images, left out: {len(images) - _MOST_IMAGES}]")
    urls = tuple(f"data:{each.mime_type};base64,{each.data}" for each in images[:_MOST_IMAGES])
    return ToolResult(cut_text("\n".join(texts), most), urls, found.is_error)


def cut_text(text: str, most: int) -> str:
    """Returns at most so many characters of a text, and a note behind them if it has more."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[{len(text) - most} further characters are left out]"


def _is_image(block: types.ContentBlock) -> TypeGuard[types.ImageContent]:
    return isinstance(block, types.ImageContent) and block.mime_type in _IMAGES


def _texts(block: types.ContentBlock) -> Iterator[str]:
    """Yields what a model reads of a part of a result that is no image."""
    match block:
        case types.TextContent():
            yield block.text
        case types.AudioContent() | types.ImageContent() if not _is_image(block):
            yield f"[what has the type {block.mime_type} is left out]"
        case types.ResourceLink():
            about = f": {block.description}" if block.description else ""
            yield f"[{block.name}, at {block.uri}{about}]"
        case types.EmbeddedResource():
            resource = block.resource
            if isinstance(resource, types.TextResourceContents):
                yield f"{resource.uri}:\n{resource.text}"
            else:
                yield f"[{resource.uri} of the type {resource.mime_type} is left out]"
