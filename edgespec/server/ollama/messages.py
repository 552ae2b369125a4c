"""The messages and tools of Ollama's API, and their translation to those of OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from edgespec.server.fields import LONG, Empty, Noted

Json = dict[str, Any]


class OllamaFunction(Noted):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: Json | None = None


class OllamaTool(Noted):
    """A tool."""

    type: Literal["function"] = "function"
    function: OllamaFunction


class OllamaCalled(Noted):
    """The function of a call, with its arguments as an object."""

    name: str
    arguments: Json | None = None


class OllamaCall(Noted):
    """A call in a message of the assistant."""

    id: str | None = None
    function: OllamaCalled


class OllamaMessage(Noted):
    """A message of a conversation. Images are accepted empty, since they are not supported."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaCall], LONG] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: Empty | None = None


def translated(messages: Sequence[OllamaMessage]) -> list[Json]:
    """Returns messages in OpenAI's API.

    There a result names the id of its call, which a client of Ollama's may leave out: then it is
    the result of the first call without one, of the same function if the message names one.
    """
    unanswered: list[Json] = []
    made = []
    for number, message in enumerate(messages):
        said: Json = {"role": message.role, "content": message.content or ""}
        if message.role == "assistant":
            calls = [
                _call(call, number, index) for index, call in enumerate(message.tool_calls or ())
            ]
            unanswered += calls
            said |= {"reasoning_content": message.thinking, "tool_calls": calls}
        elif message.role == "tool":
            answered = next((call for call in unanswered if _is_result(message, call)), None)
            if answered is not None:
                unanswered.remove(answered)
            id_ = message.tool_call_id if answered is None else answered["id"]
            said |= {"name": message.tool_name, "tool_call_id": id_}
        made.append(said)
    return made


def _call(call: OllamaCall, message: int, number: int) -> Json:
    # Some templates want ids of nine letters or digits.
    id_ = call.id or f"{message % 10**6:06}{number % 1000:03}"
    arguments = json.dumps(call.function.arguments or {}, ensure_ascii=False)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": id_, "type": "function", "function": function}


def _is_result(message: OllamaMessage, call: Json) -> bool:
    if message.tool_call_id is not None:
        return bool(message.tool_call_id == call["id"])
    return message.tool_name in (None, call["function"]["name"])
