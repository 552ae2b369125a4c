"""Messages, formats and predictions in the bodies of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from edgespec.llm.images import DataUrl
from edgespec.serve.protocols.fields import LONG, Empty, Fields, Json, member
from edgespec.serve.refusals import RequestError, shorten_value


class FunctionCall(Fields):
    """The function of a call, with its arguments as JSON."""

    name: str
    arguments: str


class Call(Fields):
    """A call in a message of the assistant."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class TextContent(Fields):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ImageUrl(Fields):
    """Where an image is: in a data URL, for nothing is fetched."""

    url: str


class ImageContent(Fields):
    """An image in a message of a user."""

    type: Literal["image_url"]
    image_url: ImageUrl


def kinds(*names: str, what: str = "a part", usual: str | None = None) -> Discriminator:
    """Returns what finds the member of a union by its `type`, each tagged by `member`.

    Errors say `what` it should be; one without a type is as `usual`.
    """

    def kind(value: Any) -> str | None:
        asked = (
            value.get("type", usual) if isinstance(value, dict) else getattr(value, "type", None)
        )
        return member(asked) if asked in names else None

    wanted = f"Input should be {what} of type {', '.join(names)}"
    return Discriminator(kind, custom_error_type="kind", custom_error_message=wanted)


MessagePart = Annotated[
    Annotated[TextContent, Tag(member("text"))] | Annotated[ImageContent, Tag(member("image_url"))],
    kinds("text", "image_url"),
]
"""A part of a message by its `type`."""


_Note = BeforeValidator(  # other values are ignored
    lambda value: value if isinstance(value, str) else None, json_schema_input_type=Any
)


class Message(Fields):
    """A message of a conversation.

    The fields from `refusal` on are not supported. They are accepted empty, since clients send
    answers back with them.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | Annotated[list[MessagePart], LONG] | None, Field(validate_default=True)
    ] = None
    tool_calls: Annotated[list[Call], LONG] | None = None
    tool_call_id: str | None = None
    name: Annotated[str | None, _Note] = None
    reasoning_content: Annotated[str | None, _Note] = None
    refusal: None = None
    audio: None = None
    images: Empty | None = None
    function_call: None = None
    prefix: bool | None = None  # a last message of the assistant is continued anyway

    @field_validator("content")
    @classmethod
    def _said(cls, content: Any, info: ValidationInfo) -> Any:
        if content is None and info.data.get("role") != "assistant":
            raise PydanticCustomError("silent", "Only an answer's content may be null")
        return content

    @field_validator("tool_calls")
    @classmethod
    def _called(cls, calls: Any, info: ValidationInfo) -> Any:
        if calls and info.data.get("role") != "assistant":
            raise PydanticCustomError("calls", "Only an answer may have tool calls")
        return calls

    @property
    def plain(self) -> Json:
        """The message for chat templates; `developer` is OpenAI's newer name for `system`."""
        role = "system" if self.role == "developer" else self.role
        given: Json = {}
        if self.role == "tool":
            given = {"tool_call_id": self.tool_call_id, "name": self.name}
        elif self.role == "assistant":
            calls = [call.model_dump(exclude_none=True) for call in self.tool_calls or ()]
            given = {"tool_calls": calls, "reasoning_content": self.reasoning_content}
        told = {name: value for name, value in given.items() if value}
        return {"role": role, "content": self._plain_content, **told}

    @property
    def _plain_content(self) -> str | list[Json]:
        """The content as one text, or in parts if there are images."""
        parts = self.content or ""
        if isinstance(parts, str) or not any(isinstance(each, ImageContent) for each in parts):
            return content_text(parts)
        return [
            {"type": "image", "image": DataUrl(each.image_url.url)}
            if isinstance(each, ImageContent)
            else {"type": "text", "text": each.text}
            for each in parts
        ]


class JsonSchema(Fields):
    """A JSON schema in OpenAI's format. It is always enforced, whatever `strict` is."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[Json, Field(alias="schema")]
    strict: bool | None = None


_SCHEMAS = {"text": (0,), "json_object": (0, 1), "json_schema": (1,)}  # that go with each type


class ResponseFormat(Fields):
    """The format of the answer; `schema` is llama.cpp's place for that of either JSON type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[Json | None, Field(alias="schema")] = None

    @property
    def structure(self) -> Json:
        """The generation option for this format.

        Raises:
            RequestError: if a schema is given with a type that has none, or twice, or is missing
                with the type json_schema.
        """
        named = None if self.json_schema is None else self.json_schema.schema_
        given = [each for each in (named, self.schema_) if each is not None]
        alien = named is not None and self.type != "json_schema"
        if alien or len(given) not in _SCHEMAS[self.type]:
            raise RequestError(
                400,
                f"response_format.type is {shorten_value(self.type)} with {len(given)} schemas: "
                "give json_schema with the type 'json_schema' and with no other",
                param="response_format",
            )
        if self.type == "text":
            return {}
        return {"json_schema": given[0] if given else {"type": "object"}}


class PredictedOutput(Fields):
    """The text that the client expects, such as a file before an edit; it may be empty.

    <https://platform.openai.com/docs/guides/predicted-outputs>
    """

    type: Literal["content"]
    content: str | Annotated[list[TextContent], LONG]


def content_text(content: str | list[Any]) -> str:
    """Returns the text of a content, which may be in parts."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
