"""Messages of OpenAI's API as chat templates expect them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgespec.errors import InputError, reason
from edgespec.llm.images import SHOWN
from edgespec.runtime.text.tools.call_form import CallForm
from edgespec.runtime.text.tools.calls import AsWritten
from edgespec.runtime.text.tools.forms import call_form
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
    return bind_results([_converted(_joined(message)) for message in given])


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


def about_tools(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there are calls or results of tools among messages from `for_template`."""
    return isinstance(messages, Sequence) and any(
        isinstance(message, Mapping) and (message.get("role") == "tool" or "tool_calls" in message)
        for message in messages
    )


def _converted(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Converts a message alone."""
    if "tool_calls" not in message:
        # Some templates would write None.
        silent = "content" in message and message["content"] is None
        return {**message, "content": ""} if silent else message
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    if not message["tool_calls"]:
        return _converted(others)
    calls = [_call(call) for call in message["tool_calls"]]
    content = others.get("content") or ""
    reasoning = others.get("reasoning_content")
    # How gpt-oss's template calls reasoning before a call; it refuses it beside a content.
    thinking = {"thinking": reasoning} if reasoning and not content else {}
    return {**others, "content": content, **thinking, "tool_calls": calls}


def _call(call: Any) -> dict[str, Any]:
    try:
        function = dict(call["function"])
        given = _arguments(function.get("arguments") or {})
        return {
            "type": "function",
            **call,
            "function": {"name": function["name"], "arguments": given},
        }
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(
            f"a message has the tool call {reason(repr(call), 60)}: give a function with its name, "
            "and arguments that are a JSON object"
        ) from error


def _arguments(given: Any) -> dict[str, Any] | AsWritten:
    if not isinstance(given, str):
        return dict(given)
    try:
        arguments = json.loads(given)
    except (ValueError, RecursionError):
        return AsWritten(given)
    return arguments if isinstance(arguments, dict) else AsWritten(given)


def with_calls_as_text(
    messages: Sequence[Mapping[str, Any]], template: str
) -> Sequence[Mapping[str, Any]]:
    """Returns messages of `for_template` for a template, given its source, without `tool_calls`.

    Such templates take calls as what the model has written, as text.
    """
    form = None if "tool_calls" in template else call_form(template)
    if form is None or not about_tools(messages):
        return messages
    return [each for message in messages for each in _written(message, form)]


def _written(message: Mapping[str, Any], form: CallForm) -> Iterator[Mapping[str, Any]]:
    """Yields a message without calls; several in GLM-4's form, which has roles of its own."""
    called = [call["function"] for call in message.get("tool_calls", ())]
    calls = [(function["name"], function["arguments"]) for function in called]
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    if form.begin:
        said = f"{others['content']}{form.write(calls)}" if calls else None
        yield message if said is None else {**others, "content": said}
        return
    if message.get("role") == "tool":
        others["role"] = "observation"
    if others.get("content") or not calls:
        yield others
    for name, arguments in calls:
        written = isinstance(arguments, str)
        text = arguments if written else json.dumps(arguments, ensure_ascii=False)
        yield {"role": message["role"], "metadata": name, "content": text}
