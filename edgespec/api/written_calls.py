"""Calls and results of tools in messages, for chat templates that do not know `tool_calls`.

Such templates take calls as what the model has written, as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgespec.api.messages import about_tools
from edgespec.runtime.text.answer_forms import CallForm, call_form

Message = Mapping[str, Any]


def with_calls_as_text(messages: Sequence[Message], template: str) -> Sequence[Message]:
    """Returns messages of `edgespec.api.messages.for_template` as a chat template knows them.

    Args:
        messages: the messages.
        template: source of the chat template.
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
        text = form.written(calls) if calls else None
        yield message if text is None else {**others, "content": f"{others['content']}{text}"}
        return
    if message.get("role") == "tool":
        others["role"] = "observation"
    if others.get("content") or not calls:
        yield others
    for name, arguments in calls:
        written = isinstance(arguments, str)
        text = arguments if written else json.dumps(arguments, ensure_ascii=False)
        yield {"role": message["role"], "metadata": name, "content": text}
