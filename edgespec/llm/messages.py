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
        InputError: if these are no messages, a part of a content is no text, the calls of one are
            no list, or a call has no function.
    """
    given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    _check(given)
    return bind_results([_spoken(read_calls(_joined(message))) for message in given])


def _check(messages: object) -> None:
    """Refuses what templates would tell of in Python's words, or write as if it were a text."""
    if not isinstance(messages, Sequence) or not messages:
        raise InputError(
            f"messages is {_shown(messages)}: give a text, or a list of one message or more"
        )
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(
                f"a message is {_shown(message)}: give a role and a content, as "
                '{"role": "user", "content": ...}'
            )
        role, content = message["role"], message.get("content")
        # Results of tools may be values: some templates write them as JSON.
        silent = content is None and role == "assistant"
        if not silent and role != "tool" and not isinstance(content, str | list | tuple):
            raise InputError(
                f"a message of {role} has the content {_shown(content)}: give a text, or parts"
            )


def _shown(value: object) -> str:
    return "nothing" if value is None else reason(repr(value), 60)


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
