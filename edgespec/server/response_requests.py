"""The body of `POST /v1/responses`, which is read as a chat."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from edgespec.api.generation import GenerationStream
from edgespec.api.llm import LLM
from edgespec.server.asked import Asked
from edgespec.server.bodies import refusal
from edgespec.server.fields import LONG, SOME, Count, Fields, Noted, Off
from edgespec.server.refusals import RequestError
from edgespec.server.requests import ChatRequest
from edgespec.server.response_items import AnyItem, Json, chat_messages

LOGPROBS = "message.output_text.logprobs"
Included = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
]  # fmt: skip
"""What an answer should include; here only log-probabilities, for there is nothing of the rest."""


def _finite(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:  # the answer could not repeat it
        raise PydanticCustomError("infinite", "Its numbers should be finite") from error
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_finite)]


class TextFormat(Fields):
    """The format of the answer: `response_format` of a chat, without its inner object."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_of_its_type(self) -> TextFormat:
        if (self.schema_ is not None) != (self.type == "json_schema"):
            raise PydanticCustomError(
                "format", "Give schema with the type json_schema, and with no other"
            )
        return self

    @property
    def of_chat(self) -> Json:
        """The same format for a chat."""
        if self.schema_ is None:
            return {"type": self.type}
        given = self.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
        return {"type": self.type, "json_schema": given}


class TextOptions(Fields):
    """Options of the answer's text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Noted):
    """How much the model thinks, where it does."""

    effort: str | None = None
    summary: str | None = None  # thoughts are told as they are, or not at all


class Function(Noted):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    @property
    def of_chat(self) -> Json:
        """The same function for a chat."""
        return {
            "type": "function",
            "function": self.model_dump(exclude={"type"}, exclude_none=True),
        }


class FunctionChoice(Fields):
    """The function that the model must call."""

    type: Literal["function"]
    name: str

    @property
    def of_chat(self) -> Json:
        """The same choice for a chat."""
        return {"type": "function", "function": {"name": self.name}}


class AllowedTools(Fields):
    """The functions that the model may or must call."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], SOME]

    @property
    def of_chat(self) -> Json:
        """The same choice for a chat."""
        tools = [tool.of_chat for tool in self.tools]
        return {"type": self.type, "allowed_tools": {"mode": self.mode, "tools": tools}}


def _unstored(value: Any) -> None:
    if value is not None:
        raise PydanticCustomError(
            "unstored", "Nothing is stored here: send the whole conversation as input"
        )


Unstored = Annotated[None, BeforeValidator(_unstored)]


class ResponsesRequest(Asked):
    """`POST /v1/responses`. Nothing of it is stored, whatever `store` says."""

    input: str | Annotated[list[AnyItem], SOME]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    tools: Annotated[list[Function], LONG] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    include: Annotated[list[Included], LONG] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    previous_response_id: Unstored | None = None
    conversation: Unstored | None = None
    prompt: Unstored | None = None
    background: Off | None = None
    truncation: Literal["disabled", "auto"] | None = None  # too long an input is always refused
    max_tool_calls: Count | None = None  # counts OpenAI's own tools
    metadata: dict[str, str] | None = None  # without effect, but the answer repeats it
    # Fields that some clients send as null.
    context_management: None = None
    moderation: None = None

    def texts(self, llm: LLM) -> list[GenerationStream]:  # noqa: D102 - of the base class
        return self.chat.texts(llm)

    @cached_property
    def chat(self) -> ChatRequest:
        """The same request for `POST /v1/chat/completions`.

        Raises:
            RequestError: if it holds what a chat does not take.
        """
        given = {name: value for name in _COMMON if (value := getattr(self, name)) is not None}
        try:
            return ChatRequest.model_validate(given | self._renamed())
        except ValidationError as error:
            refused = refusal(error)
            name = (refused.param or "").partition(".")[0]
            raise RequestError(
                400, f"as a chat: {refused}", refused.code, _PARAMS.get(name, name)
            ) from error

    def _renamed(self) -> Json:
        """Returns the fields of a chat that have another name or form."""
        text, choice = self.text or TextOptions(), self.tool_choice
        renamed = {
            "messages": chat_messages(self.instructions, self.input),
            "stream_options": {"include_usage": True},
            "max_completion_tokens": self.max_output_tokens,
            "response_format": None if text.format is None else text.format.of_chat,
            "verbosity": text.verbosity,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "tools": [tool.of_chat for tool in self.tools] if self.tools else None,
            "tool_choice": choice if isinstance(choice, str | None) else choice.of_chat,
        }
        if self.top_logprobs or LOGPROBS in (self.include or ()):
            renamed |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return {name: value for name, value in renamed.items() if value is not None}


_COMMON = (*Asked.model_fields, "parallel_tool_calls")
_PARAMS = {"messages": "input", "response_format": "text.format"}  # where they come from
