"""Messages of OpenAI's API as chat templates expect them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgespec.errors import InputError, reason
from edgespec.llm.images import SHOWN
from edgespec.runtime.text.tools.history import read_calls
from edgespec.runtime.text.tools.results import bind_results

Messages = str | Sequence[Mapping[str, Any]]
"""A conversation: a text, which is a user's message, or dicts with `role` and `content`, a text or
parts of type text, and `tool_calls` and `tool_call_id`, as in OpenAI's API."""


def for_template(messages: Messages) -> Sequence[Mapping[str, Any]]:
    """Returns messages as chat templates expect them.

    A text is a user's message. Contents are texts: parts are joined, and given to templates that
    want them (`ChatTemplate`). Only a content with pictures, whose places `edgespec.llm.images` has
    left, stays in parts. Templates read the arguments of calls as values, while OpenAI's API
    has them as JSON text. Those that are no JSON object, as of a call that was cut short, stay as
    they were written. Some want to know a tool by its name, where the API gives the id of a call,
    and most show no ids: results come in the order of their calls.

    Raises:
        InputError: if a part of a content is no text, or a call has no function.
    """
    given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    if not isinstance(given, Sequence) or not all(isinstance(m, Mapping) for m in given):
        return given  # the template tells what is wrong with them
    return bind_results([_spoken(read_calls(_joined(message))) for message in given])


def _joined(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Joins the parts of a content to one text."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    texts: list[str] = []
    shown = any(part == SHOWN for part in content)
    for part in content:
        if part == SHOWN:
            continue
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str) or part.get("type") != "text":
            raise InputError(
                f"a content has the part {reason(repr(part), 60)}: give parts of the type text, "
                'as {"type": "text", "text": ...}, or image'
            )
        texts.append(text)
    return message if shown else {**message, "content": "".join(texts)}


def _spoken(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a message whose content is not None, which some templates would write."""
    silent = "content" in message and message["content"] is None
    return {**message, "content": ""} if silent else message
