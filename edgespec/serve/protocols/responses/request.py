"""The body of `POST /v1/responses`.

https://platform.openai.com/docs/api-reference/responses/create describes it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
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
from edgespec.serve.protocols.protocol import TextProtocol
from edgespec.serve.protocols.responses.items import (
    CUSTOM_INPUT,
    ITEMS,
    AnyItem,
    Item,
    as_items,
    chat_messages,
    within,
)
from edgespec.serve.protocols.responses.store import RESPONSES, ResponseStore
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


class CustomFormat(Fields):
    """What the text for a tool looks like."""

    type: Literal["text", "grammar"]
    syntax: str | None = None
    definition: str | None = None


class TextTool(Fields):
    """A tool that the model gives a text, and no arguments."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: CustomFormat | None = None

    @property
    def function(self) -> FunctionTool:
        """The function that it is for a model, which is told the grammar, but not held to it."""
        form = self.format or CustomFormat(type="text")
        told = [self.description] if self.description else []
        if form.definition is not None:
            told.append(f"The input follows this grammar ({form.syntax}):\n{form.definition}")
        text = {"type": "string"}
        parameters = {
            "type": "object",
            "properties": {CUSTOM_INPUT: text},
            "required": [CUSTOM_INPUT],
        }
        return FunctionTool(
            type="function", name=self.name, description="\n\n".join(told), parameters=parameters
        )


AnyTool = Annotated[
    Annotated[FunctionTool, Tag(member("function"))]
    | Annotated[Namespace, Tag(member("namespace"))]
    | Annotated[TextTool, Tag(member("custom"))],
    kinds("function", "namespace", "custom", what="a tool"),
]
"""A function, or several."""


class FunctionChoice(Fields):
    """The function that the model must call."""

    type: Literal["function", "custom"]
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
        list[FunctionChoice],
        SOME,
        own_kinds_left_out(list[FunctionChoice | OwnTool], "function", "custom"),
    ]

    @property
    def choice(self) -> ToolChoice:
        """What is chosen."""
        names = [within(each.namespace, each.name) for each in self.tools]
        return ToolChoice(self.mode, names, alone=True)


def _unstored(value: Any) -> None:
    if value is not None:
        raise PydanticCustomError(
            "unstored",
            "It is not stored here: send the whole conversation as input, or go on from a "
            "response by previous_response_id",
        )


Unstored = Annotated[None, BeforeValidator(_unstored)]


class ResponsesRequest(RequestBody):
    """`POST /v1/responses`."""

    input: str | Annotated[list[AnyItem], MESSAGES]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    text: TextOptions | None = None
    reasoning: ReasoningEffort | None = None
    tools: (
        Annotated[
            list[AnyTool],
            LONG,
            own_kinds_left_out(list[AnyTool | OwnTool], "function", "namespace", "custom"),
        ]
        | None
    ) = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    include: Any = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    previous_response_id: str | None = None
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

    _store: ResponseStore | None = PrivateAttr(None)
    _before: list[Item] = PrivateAttr(default_factory=list)

    def go_on(self, store: ResponseStore) -> None:
        """Lets the request go on from the response that it names, and keep what comes of it.

        Raises:
            RequestError: if the response is not there.
        """
        self._store = store
        if self.previous_response_id is not None:
            self._before = store.conversation(self.previous_response_id)

    def keep(self, id_: str, output: Sequence[Json]) -> None:
        """Keeps what was asked and answered, unless the request does not want it."""
        if self._store is not None and self.store is not False:
            items = [*as_items(self.input), *ITEMS.validate_python(output)]
            self._store.put(id_, self.previous_response_id, items)

    def request(self, llm: LLM) -> GenerationRequest:  # noqa: D102
        messages = chat_messages(self.instructions, [*self._before, *as_items(self.input)])
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
            "context_shift": None if self.truncation is None else self.truncation == "auto",
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
        found = list[tuple[str | None, FunctionTool]]()
        for tool in self.tools or ():
            if isinstance(tool, Namespace):
                found += ((tool.name, function) for function in tool.tools)
            else:
                found.append((None, tool.function if isinstance(tool, TextTool) else tool))
        return found

    @property
    def custom(self) -> frozenset[str]:
        """Names of the tools that take a text."""
        return frozenset(tool.name for tool in self.tools or () if isinstance(tool, TextTool))

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


@dataclass(frozen=True)
class ResponsesProtocol(TextProtocol):
    """`POST /v1/responses`, whose requests may go on from earlier responses.

    Attributes:
        store: the responses of this process.
    """

    store: ResponseStore = RESPONSES

    def parse(self, data: bytes) -> ResponsesRequest:
        """See `Protocol`.

        Raises:
            RequestError: if the body is invalid, or goes on from a response that is not there.
        """
        body: ResponsesRequest = super().parse(data)
        body.go_on(self.store)
        return body
