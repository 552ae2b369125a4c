"""Messages for templates that do not take all that a conversation may hold, as llama.cpp does it.

Some have no role for systems, some want users and assistants in turns, and some join the arguments
of calls as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

SYSTEM, USER = "system", "user"


def without_systems(messages: Sequence[Message]) -> list[Message]:
    """Returns messages in which the user says first what systems said before."""
    made: list[Message] = []
    told: list[str] = []
    for message in messages:
        if message.get("role") == SYSTEM and isinstance(message.get("content"), str):
            told.append(message["content"])
            continue
        text = "\n".join(told)
        content = message.get("content")
        if told and message.get("role") == USER:
            made.append({**message, "content": _joined(text, content, "\n")})
        else:
            made += [{"role": USER, "content": text}] if told else []
            made.append(message)
        told = []
    return [*made, {"role": USER, "content": "\n".join(told)}] if told else made


def in_turns(messages: Sequence[Message]) -> list[Message]:
    """Returns messages with one system, the first, and no two in a row of a user or an assistant.

    What has calls, or answers them, stays as it is.
    """
    made: list[Message] = []
    for message in sorted(messages, key=lambda each: each.get("role") != SYSTEM):
        last = made[-1] if made else {}
        if _is_plain(message) and _is_plain(last) and last.get("role") == message.get("role"):
            said = _joined(last["content"], message["content"], "\n\n")
            made[-1] = {**last, **message, "content": said}
        else:
            made.append(message)
    return made


def with_arguments_as_text(message: Message) -> Message:
    """Returns a message with the arguments of its calls as text in JSON."""
    calls = [
        {**call, "function": {**call["function"], "arguments": _text(call["function"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _text(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments")
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _is_plain(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, str | list) and not (
        message.get("tool_calls") or message.get("role") == "tool"
    )


def _joined(first: Any, second: Any, between: str) -> Any:
    """Returns two contents as one; in parts if one of them is."""
    if isinstance(first, list) or isinstance(second, list):
        return [*_parts(first), {"type": "text", "text": between}, *_parts(second)]
    return f"{first}{between}{second}" if first and second else first or second


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]
