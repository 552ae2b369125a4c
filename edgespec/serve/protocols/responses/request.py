"""The body of `POST /v1/responses`.

https://platform.openai.com/docs/api-reference/responses/create describes it.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from edgespec.llm.chat import ChatOptions
from edgespec.llm.keywords import SamplingKeywords
from edgespec.llm.llm import LLM
from edgespec.llm.request import GenerationRequest
from edgespec.serve.protocols.chat import effort_options
from edgespec.serve.protocols.fields import (
    LONG,
    MESSAGES,
    SOME,
    Count,
    Fields,
    Int,
    Json,
    Off,
    member,
)
from edgespec.serve.protocols.messages import kinds
from edgespec.serve.protocols.responses.items import AnyItem, chat_messages, within
from edgespec.serve.protocols.text import RequestBody
from edgespec.serve.protocols.tools import NAME, OwnTool, ToolChoice, own_kinds_left_out
from edgespec.serve.protocols.unsupported import NoValue
from edgespec.serve.refusals import RequestError, shorten_value

LOGPROBS = "message.output_text.logprobs"
"""What an answer may be asked to include; there is nothing of what else it may have elsewhere."""


def _finite(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:  # the answer could not repeat it
        raise PydanticCustomError("infinite", "Its numbers should be finite") from error
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_finite)]
Repeated = Annotated[Any, AfterValidator(_finite)]
"""A field without effect, whatever it holds, which the answer repeats."""


class TextFormat(Fields):
    """The format of the answer: `response_format` of a chat, without its inner object."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_of_its_type(self) -> TextFormat:
        wanted = {"text": (False,), "json_object": (False, True), "json_schema": (True,)}
        if (self.schema_ is not None) not in wanted[self.type]:
            raise PydanticCustomError(
                "format", "Give schema with the type json_schema, and none with the type text"
            )
        return self

    @property
    def structure(self) -> Json:
        """The option for the form of the text."""
        if self.type == "text":
            return {}
        return {"json_schema": {"type": "object"} if self.schema_ is None else self.schema_}


class TextOptions(Fields):
    """Options of the answer's text."""

    format: TextFormat | None = None
    verbosity: Repeated = None


class ReasoningEffort(Fields):
    """How much the model thinks, where it does."""

    effort: str | None = None
    summary: Repeated = None  # thoughts are told as they are, or not at all


class FunctionTool(Fields):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Namespace(Fields):
    """Functions that belong together, as those of a server of tools (MCP)."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: Annotated[
        list[FunctionTool], LONG, own_kinds_left_out(list[FunctionTool | OwnTool], "function")
    ]


AnyTool = Annotated[
    Annotated[FunctionTool, Tag(member("function"))]
    | Annotated[Namespace, Tag(member("namespace"))],
    kinds("function", "namespace", what="a tool"),
]
"""A function, or several."""


class FunctionChoice(Fields):
    """The function that the model must call."""

    type: Literal["function"]
    name: str
    namespace: str | None = None

    @property
    def choice(self) -> ToolChoice:
        """What is chosen."""
        name = within(self.namespace, self.name)
        return ToolChoice(name, [name])


class AllowedTools(Fields):
    """The functions that the model may or must call."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[FunctionChoice], SOME, own_kinds_left_out(list[FunctionChoice | OwnTool], "function")
    ]

    @property
    def choice(self) -> ToolChoice:
        """What is chosen."""
        names = [within(each.namespace, each.name) for each in self.tools]
        return ToolChoice(self.mode, names, alone=True)


def _unstored(value: Any) -> None:
    if value is not None:
        raise PydanticCustomError(
            "unstored", "Nothing is stored here: send the whole conversation as input"
        )


Unstored = Annotated[None, BeforeValidator(_unstored)]


class ResponsesRequest(RequestBody):
    """`POST /v1/responses`. Nothing of it is stored, whatever `store` says."""

    input: str | Annotated[list[AnyItem], MESSAGES]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    text: TextOptions | None = None
    reasoning: ReasoningEffort | None = None
    tools: (
        Annotated[
            list[AnyTool],
            LONG,
            own_kinds_left_out(list[AnyTool | OwnTool], "function", "namespace"),
        ]
        | None
    ) = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    include: Any = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    previous_response_id: Unstored | None = None
    conversation: Unstored | None = None
    prompt: Unstored | None = None
    background: Off | None = None
    truncation: Literal["disabled", "auto"] | None = None
    max_tool_calls: Repeated = None  # counts OpenAI's own tools
    metadata: Repeated = None
    user: Repeated = None
    safety_identifier: Repeated = None
    # Codex tells about itself, and others shorten what is too long.
    client_metadata: Any = None
    context_management: Any = None
    # A chat's names, which this API does not have.
    n: NoValue = None
    max_tokens: NoValue = None

    @property
    def shortens(self) -> bool:  # noqa: D102 - of the base class
        return self.truncation == "auto"

    def request(self, llm: LLM) -> GenerationRequest:  # noqa: D102
        messages = chat_messages(self.instructions, self.input)
        if not messages:
            raise RequestError(400, "input says nothing: give a message", "invalid_value", "input")
        return GenerationRequest(messages, ChatOptions(**self.options(llm.sampling)))

    def options(self, usual: SamplingKeywords) -> Json:
        """See `RequestBody`."""
        text_format = None if self.text is None else self.text.format
        effort = None if self.reasoning is None else self.reasoning.effort
        further: Json = {
            "max_new_tokens": self.max_output_tokens,
            "logprobs": self.likeliest,
            "template_options": effort_options(effort),
        }
        structure = {} if text_format is None else text_format.structure
        return super().options(usual) | further | structure | self._called

    @property
    def likeliest(self) -> int | None:
        """The number of likeliest tokens to report per token; None for no log-probabilities."""
        included = self.include if isinstance(self.include, list) else ()
        wanted = self.top_logprobs or LOGPROBS in included
        return self.top_logprobs or 0 if wanted else None

    @property
    def functions(self) -> list[tuple[str | None, FunctionTool]]:
        """The functions that may be called, each with its namespace, if it has one."""
        return [
            (tool.name if isinstance(tool, Namespace) else None, function)
            for tool in self.tools or ()
            for function in (tool.tools if isinstance(tool, Namespace) else [tool])
        ]

    @property
    def _called(self) -> Json:
        """The options for calls."""
        given = self.tool_choice
        choice = ToolChoice(given or "auto") if isinstance(given, str | None) else given.choice
        tools = [_described(namespace, function) for namespace, function in self.functions]
        return choice.options(tools, self.parallel_tool_calls)


def _described(namespace: str | None, function: FunctionTool) -> Json:
    """Returns a function as `LLM.chat` takes it."""
    name = within(namespace, function.name)
    if not NAME.fullmatch(name):
        raise RequestError(
            400,
            f"the function {shorten_value(name)} has a name of other characters, or of more "
            "than 128: use letters, digits, and . _ -",
            "invalid_value",
            "tools",
        )
    told = function.model_dump(exclude={"type"}, exclude_none=True)
    return {"type": "function", "function": told | {"name": name}}
