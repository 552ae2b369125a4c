"""The body of `POST /v1/responses`, which is read as a chat.

https://platform.openai.com/docs/api-reference/responses/create describes it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from edgespec.llm.llm import LLM
from edgespec.llm.stream import Stream
from edgespec.runtime.text.tools.calls import ToolCall
from edgespec.serve.protocols.chat import ChatRequest
from edgespec.serve.protocols.fields import (
    LONG,
    MESSAGES,
    SOME,
    Count,
    Fields,
    Int,
    Json,
    Off,
    refusal,
)
from edgespec.serve.protocols.messages import OwnTool, joined, kinds, own_kinds_left_out, tag
from edgespec.serve.protocols.shortening import ShortenedChatRequest
from edgespec.serve.protocols.text import RequestBody
from edgespec.serve.protocols.unsupported import NoValue
from edgespec.serve.refusals import RequestError

LOGPROBS = "message.output_text.logprobs"
"""What an answer may be asked to include; there is nothing of what else it may have elsewhere."""


class InputText(Fields):
    """A part of a message, or of what a function returned."""

    type: Literal["input_text", "output_text"]
    text: str


class ReasoningText(Fields):
    """A part of what a model thought."""

    type: Literal["reasoning_text"]
    text: str


class InputImage(Fields):
    """An image in a message, in a data URL."""

    type: Literal["input_image"]
    image_url: str


Part = Annotated[
    Annotated[InputText, Tag(tag("input_text"))]
    | Annotated[InputText, Tag(tag("output_text"))]
    | Annotated[InputImage, Tag(tag("input_image"))],
    kinds("input_text", "output_text", "input_image"),
]
"""A part of a message by its `type`."""


def _in_chat(content: str | list[InputText | InputImage]) -> str | list[Json]:
    """Returns what a message says in a chat: one text, or parts if there are images."""
    if isinstance(content, str) or not _shows(content):
        return joined(content)
    return [
        {"type": "image_url", "image_url": {"url": each.image_url}}
        if isinstance(each, InputImage)
        else {"type": "text", "text": each.text}
        for each in content
    ]


def _shows(content: str | list[InputText | InputImage]) -> bool:
    """Whether there are images in a message."""
    return any(isinstance(each, InputImage) for each in content)


Content = str | Annotated[list[InputText], LONG]


class MessageItem(Fields):
    """What somebody said."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], LONG]


class ReasoningItem(Fields):
    """What the model thought before it answered, as it came from the server."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], LONG] | None = None


class FunctionCallItem(Fields):
    """A function that the model called, perhaps one of a namespace."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class FunctionOutputItem(Fields):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


Item = MessageItem | ReasoningItem | FunctionCallItem | FunctionOutputItem

_SYSTEM = ("system", "developer")

AnyItem = Annotated[
    Annotated[MessageItem, Tag(tag("message"))]
    | Annotated[ReasoningItem, Tag(tag("reasoning"))]
    | Annotated[FunctionCallItem, Tag(tag("function_call"))]
    | Annotated[FunctionOutputItem, Tag(tag("function_call_output"))],
    kinds(
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        what="an item",
        usual="message",
    ),
]
"""An item by its `type`; one without a type is a message."""


def chat_messages(instructions: str | None, given: str | Sequence[Item]) -> list[Json]:
    """Returns a conversation as the messages of a chat.

    What systems and developers say at the beginning is one message, since many templates have a
    place for one only.

    Args:
        instructions: what the system says first; None for nothing.
        given: what the user says, or the items of a conversation.
    """
    items = [MessageItem(role="user", content=given)] if isinstance(given, str) else given
    first: list[str] = []
    for item in items:
        if not (isinstance(item, MessageItem) and item.role in _SYSTEM) or _shows(item.content):
            break
        first.append(joined(item.content))
    said = first if instructions is None else [instructions, *first]
    messages = [{"role": "system", "content": "\n\n".join(said)}] if said else []
    for item in items[len(first) :]:
        _extend(messages, item)
    return messages


def _extend(messages: list[Json], item: Item) -> None:
    """Adds an item to the messages of a chat; the parts of an answer are several items."""
    last: Json = messages[-1] if messages else {}
    answer: Json = {"role": "assistant", "content": None}
    begun = last.get("role") == "assistant"
    if isinstance(item, FunctionOutputItem):
        text = joined(item.output)
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
    elif isinstance(item, MessageItem) and item.role != "assistant":
        messages.append({"role": item.role, "content": _in_chat(item.content)})
    elif isinstance(item, MessageItem):
        if not begun or last["content"] is not None or "tool_calls" in last:
            messages.append(answer)
        messages[-1]["content"] = _in_chat(item.content)
    elif isinstance(item, FunctionCallItem):
        if not begun:
            messages.append(answer)
        name = within(item.namespace, item.name)
        call = ToolCall(item.call_id, name, item.arguments)
        messages[-1].setdefault("tool_calls", []).append(call.message)
    elif text := joined(item.content or ""):
        messages.append({**answer, "reasoning_content": text})


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
    def of_chat(self) -> Json:
        """The same format for a chat."""
        if self.type != "json_schema":
            return {"type": self.type, "schema": self.schema_}
        given = self.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
        return {"type": self.type, "json_schema": given}


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
    Annotated[FunctionTool, Tag(tag("function"))] | Annotated[Namespace, Tag(tag("namespace"))],
    kinds("function", "namespace", what="a tool"),
]
"""A function, or several."""


def within(namespace: str | None, name: str) -> str:
    """Returns the name by which a model knows a function of a namespace, or one of none."""
    return name if not namespace else f"{namespace.rstrip('_')}__{name}"


class FunctionChoice(Fields):
    """The function that the model must call."""

    type: Literal["function"]
    name: str
    namespace: str | None = None


class AllowedTools(Fields):
    """The functions that the model may or must call."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[FunctionChoice], SOME, own_kinds_left_out(list[FunctionChoice | OwnTool], "function")
    ]


def _of_chat(
    choice: str | FunctionTool | FunctionChoice | AllowedTools | None, namespace: str | None = None
) -> Any:
    """Returns a function, perhaps of a namespace, or a choice of such, as a chat has it."""
    if isinstance(choice, AllowedTools):
        tools = list(map(_of_chat, choice.tools))
        return {"type": choice.type, "allowed_tools": {"mode": choice.mode, "tools": tools}}
    if isinstance(choice, Fields):
        function = choice.model_dump(exclude={"type", "namespace"}, exclude_none=True)
        place = choice.namespace if isinstance(choice, FunctionChoice) else namespace
        return {"type": "function", "function": {**function, "name": within(place, choice.name)}}
    return choice


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

    def texts(self, llm: LLM) -> list[Stream]:  # noqa: D102 - of the base class
        return self.chat.texts(llm)

    @cached_property
    def chat(self) -> ChatRequest:
        """The same request for `POST /v1/chat/completions`.

        Raises:
            RequestError: if it holds what a chat does not take.
        """
        given = {name: value for name in _COMMON if (value := getattr(self, name)) is not None}
        try:
            kind = ShortenedChatRequest if self.truncation == "auto" else ChatRequest
            return kind.model_validate(given | self._renamed())
        except ValidationError as error:
            refused = refusal(error)
            name = (refused.param or "").partition(".")[0]
            raise RequestError(
                400, f"as a chat: {refused}", refused.code, _PARAMS.get(name, name)
            ) from error

    @property
    def functions(self) -> list[tuple[str | None, FunctionTool]]:
        """The functions that may be called, each with its namespace, if it has one."""
        return [
            (tool.name if isinstance(tool, Namespace) else None, function)
            for tool in self.tools or ()
            for function in (tool.tools if isinstance(tool, Namespace) else [tool])
        ]

    def _renamed(self) -> Json:
        """Returns the fields of a chat that have another name or form."""
        text = self.text or TextOptions()
        tools = [_of_chat(function, namespace) for namespace, function in self.functions]
        renamed = {
            "messages": chat_messages(self.instructions, self.input),
            "stream_options": {"include_usage": True},
            "max_completion_tokens": self.max_output_tokens,
            "response_format": None if text.format is None else text.format.of_chat,
            "verbosity": text.verbosity,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "tools": tools or None,
            "tool_choice": _of_chat(self.tool_choice),
        }
        included = self.include if isinstance(self.include, list) else ()
        if self.top_logprobs or LOGPROBS in included:
            renamed |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return {name: value for name, value in renamed.items() if value is not None}


_COMMON = (*RequestBody.model_fields, "parallel_tool_calls")
_PARAMS = {"messages": "input", "response_format": "text.format"}  # where they come from
