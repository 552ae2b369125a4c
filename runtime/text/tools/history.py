"""Calls in the messages of a conversation, as chat templates expect them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgespec.errors import InputError, reason
from edgespec.runtime.text.tools.call_form import CallForm
from edgespec.runtime.text.tools.calls import PlainArguments
from edgespec.runtime.text.tools.forms import call_form

Message = Mapping[str, Any]


def read_calls(message: Message) -> Message:
    """Returns a message with its calls as templates take them: with their arguments as values.

    Arguments that are no JSON object, as of a call that was cut short, stay as they were written.

    Args:
        message: a message in the format of OpenAI's API.

    Raises:
        InputError: if these are no list, or a call has no function.
    """
    if "tool_calls" not in message:
        return message
    given = message["tool_calls"]
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    if given is not None and not isinstance(given, list | tuple):
        raise InputError(
            f"a message has the tool_calls {reason(repr(given), 60)}: give a list of calls"
        )
    if not given:
        return others
    calls = [_call(call) for call in given]
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


def _arguments(given: Any) -> dict[str, Any] | PlainArguments:
    if not isinstance(given, str):
        return dict(given)
    try:
        arguments = json.loads(given)
    except (ValueError, RecursionError):
        return PlainArguments(given)
    return arguments if isinstance(arguments, dict) else PlainArguments(given)


def about_tools(messages: Sequence[Message]) -> bool:
    """Whether there are calls or results of tools among messages that templates take."""
    return isinstance(messages, Sequence) and any(
        isinstance(message, Mapping) and (message.get("role") == "tool" or "tool_calls" in message)
        for message in messages
    )


def with_calls_as_text(messages: Sequence[Message], template: str) -> Sequence[Message]:
    """Returns messages for a template that knows no `tool_calls`; for others, the same.

    Such templates take calls as what the model has written, as text.

    Args:
        messages: messages with their calls as `read_calls` returns them.
        template: source of the template.
    """
    form = None if "tool_calls" in template else call_form(template)
    if form is None or not about_tools(messages):
        return messages
    return [each for message in messages for each in _written(message, form)]


def _written(message: Message, form: CallForm) -> Iterator[Message]:
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
