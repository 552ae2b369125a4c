"""Messages and tools in the bodies of Ollama's API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Literal

from edgespec.llm.images import DataUrl
from edgespec.runtime.text.tools.calls import ToolCall
from edgespec.serve.protocols.fields import LONG, Fields, Json
from edgespec.serve.protocols.tools import Name


class OllamaFunction(Fields):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: Json | None = None


class OllamaTool(Fields):
    """A tool."""

    type: Literal["function"] = "function"
    function: OllamaFunction


class OllamaFunctionCall(Fields):
    """The function of a call, with its arguments as an object."""

    name: str
    arguments: Json | None = None


class OllamaCall(Fields):
    """A call in a message of the assistant."""

    id: str | None = None
    function: OllamaFunctionCall


class OllamaMessage(Fields):
    """A message of a conversation; images are files in base64."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaCall], LONG] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: Annotated[list[str], LONG] | None = None


def plain(messages: Sequence[OllamaMessage]) -> list[Json]:
    """Returns messages for `LLM.chat`.

    There a result names the id of its call, which a client of Ollama's may leave out: then it is
    the result of the first call without one, of the same function if the message names one.
    """
    unanswered: list[Json] = []
    made = []
    for number, message in enumerate(messages):
        said: Json = {"role": message.role, "content": _content(message)}
        further: Json = {}
        if message.role == "assistant":
            calls = [
                _call(call, number, index) for index, call in enumerate(message.tool_calls or ())
            ]
            unanswered += calls
            further = {"reasoning_content": message.thinking, "tool_calls": calls}
        elif message.role == "tool":
            answered = next((call for call in unanswered if _is_result(message, call)), None)
            if answered is not None:
                unanswered.remove(answered)
            id_ = message.tool_call_id if answered is None else answered["id"]
            further = {"name": message.tool_name, "tool_call_id": id_}
        made.append(said | {name: value for name, value in further.items() if value})
    return made


def _content(message: OllamaMessage) -> str | list[Json]:
    """Returns what a message says: one text, or parts if there are images."""
    text = message.content or ""
    if not message.images:
        return text
    # The kind of file is found in it.
    shown = [DataUrl(f"data:;base64,{each}") for each in message.images]
    return [*({"type": "image", "image": each} for each in shown), {"type": "text", "text": text}]


def _call(call: OllamaCall, message: int, number: int) -> Json:
    # Some templates want ids of nine letters or digits.
    id_ = call.id or f"{message % 10**6:06}{number % 1000:03}"
    arguments = json.dumps(call.function.arguments or {}, ensure_ascii=False)
    return ToolCall(id_, call.function.name, arguments).message


def _is_result(message: OllamaMessage, call: Json) -> bool:
    if message.tool_call_id is not None:
        return bool(message.tool_call_id == call["id"])
    return message.tool_name in (None, call["function"]["name"])
