"""Tools, reasoning and tool calls in the bodies of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from edgespec.api.result import GenerationResult
from edgespec.runtime.text.streaming import CallPiece
from edgespec.server.fields import LONG, SOME, Fields, Noted
from edgespec.server.refusals import RequestError, shown

Json = dict[str, Any]

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class Function(Fields):
    """A function that may be called. Arguments are always held to the schema."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Fields):
    """A tool."""

    type: Literal["function"]
    function: Function


class ChosenName(Noted):
    """The name of a tool."""

    name: Name


class Chosen(Noted):
    """The tool that must be called."""

    type: Literal["function"]
    function: ChosenName


class Choices(Noted):
    """Tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[Chosen], SOME]


class ChosenOf(Noted):
    """Some of the tools, of which one may or must be called."""

    type: Literal["allowed_tools"]
    allowed_tools: Choices


ToolChoice = Literal["none", "auto", "required"] | Chosen | ChosenOf
Tools = Annotated[list[Tool], LONG]


class CalledFunction(Noted):
    """The function of a call, with its arguments as JSON."""

    name: str
    arguments: str


class Call(Noted):
    """A call in a message of the assistant."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


def tool_options(
    tools: Sequence[Tool] | None, choice: ToolChoice | None, parallel: bool | None
) -> Json:
    """Returns the options of an answer for tools.

    Args:
        tools: tools of the request.
        choice: `tool_choice` of the request.
        parallel: `parallel_tool_calls` of the request.

    Raises:
        RequestError: if the choice names a tool that is not there.
    """
    described = [tool.model_dump(exclude_none=True) for tool in tools or ()]
    names = [tool["function"]["name"] for tool in described]
    wanted: list[str] = names
    mode: str = choice if isinstance(choice, str) else "auto"
    if isinstance(choice, Chosen):
        wanted, mode = [choice.function.name], choice.function.name
    elif isinstance(choice, ChosenOf):
        wanted = [each.function.name for each in choice.allowed_tools.tools]
        mode = choice.allowed_tools.mode
        described = [tool for tool in described if tool["function"]["name"] in wanted]
    missing = next((name for name in wanted if name not in names), None)
    if missing is not None or (mode == "required" and not names):
        raise RequestError(
            400, f"tool_choice is {shown(missing or mode)}, but there is no such tool: add it to "
            "tools", param="tool_choice",
        )  # fmt: skip
    if not described:
        return {}
    return {
        "tools": described,
        "tool_choice": mode,
        "parallel_tool_calls": parallel is None or parallel,
    }


def answered(result: GenerationResult) -> Json:
    """Returns the message of a whole answer, as far as it has text, reasoning and calls."""
    message: Json = {"content": result.text, "refusal": None}
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    if result.tool_calls:
        message["content"] = result.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for call in result.tool_calls
        ]
    return message


def call_delta(piece: CallPiece) -> Json:
    """Returns a piece of a call as part of a stream."""
    if piece.id is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}
