"""Tools in the bodies of OpenAI's API, and the choice among them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from edgespec.serve.protocols.fields import LONG, SOME, Fields, Json, kinds_left_out
from edgespec.serve.refusals import RequestError, shorten_value

NAME = re.compile(r"^[a-zA-Z0-9_.-]{1,128}$")
"""What a function may be called."""

Name = Annotated[str, Field(pattern=NAME.pattern)]


class FunctionBody(Fields):
    """A function that may be called. Arguments are always held to the schema."""

    name: Name
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class Tool(Fields):
    """A tool."""

    type: Literal["function"]
    function: FunctionBody


class OwnTool(Fields):
    """A tool of OpenAI's own, such as `web_search`."""

    type: str


def own_kinds_left_out(given: Any, *names: str) -> BeforeValidator:
    """Returns what leaves tools out of a list whose type is none of these; the log names each type.

    They are tools of OpenAI's own, which nobody has here, and clients offer them beside functions.
    A model cannot call what it does not see.

    Args:
        given: the type of such a list, for the document.
        names: types that stay.
    """
    return kinds_left_out("a request offers a tool", lambda kind: kind not in names, given)


class ToolName(Fields):
    """The name of a tool."""

    name: Name


class NamedTool(Fields):
    """The tool that must be called."""

    type: Literal["function"]
    function: ToolName

    @property
    def choice(self) -> ToolChoice:
        """What is chosen."""
        return ToolChoice(self.function.name, [self.function.name])


class ToolSelection(Fields):
    """Tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[
        list[NamedTool], SOME, own_kinds_left_out(list[NamedTool | OwnTool], "function")
    ]


class ToolSubset(Fields):
    """Some of the tools, of which one may or must be called."""

    type: Literal["allowed_tools"]
    allowed_tools: ToolSelection

    @property
    def choice(self) -> ToolChoice:
        """What is chosen."""
        selection = self.allowed_tools
        names = [each.function.name for each in selection.tools]
        return ToolChoice(selection.mode, names, alone=True)


Tools = Annotated[list[Tool], LONG, own_kinds_left_out(list[Tool | OwnTool], "function")]


@dataclass(frozen=True)
class ToolChoice:
    """Which tools an answer may call.

    Attributes:
        mode: see `ChatOptions.tool_choice`.
        names: tools that it names.
        alone: whether the model sees no others.
    """

    mode: str = "auto"
    names: Sequence[str] = ()
    alone: bool = False

    def options(self, tools: Sequence[Json], parallel: bool | None = None) -> Json:
        """Returns the options of an answer.

        Args:
            tools: all tools of the request, as `LLM.chat` takes them.
            parallel: whether there may be several calls; None: yes.

        Raises:
            RequestError: if the choice names a tool that is not there.
        """
        there = [tool["function"]["name"] for tool in tools]
        missing = next((name for name in self.names if name not in there), None)
        if missing is not None or (self.mode == "required" and not there):
            raise RequestError(
                400,
                f"tool_choice is {shorten_value(missing or self.mode)}, but there is no such tool: "
                "add it to tools",
                param="tool_choice",
            )
        seen = [t for t in tools if not self.alone or t["function"]["name"] in self.names]
        if not seen:
            return {}
        several = parallel is None or parallel
        return {"tools": seen, "tool_choice": self.mode, "parallel_tool_calls": several}


def choice_of(given: str | NamedTool | ToolSubset | None) -> ToolChoice:
    """Returns what a chat chooses of its tools."""
    if isinstance(given, NamedTool | ToolSubset):
        return given.choice
    return ToolChoice(given or "auto")
