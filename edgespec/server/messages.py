"""The messages of a conversation in the bodies of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from edgespec.server.fields import LONG, Empty, Noted, Off
from edgespec.server.tools import Call


def _text_or_none(value: Any) -> Any:
    return value if isinstance(value, str) else None


_Note = BeforeValidator(_text_or_none, json_schema_input_type=Any)  # other values are ignored


class TextContent(Noted):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(Noted):
    """A message of a conversation.

    The fields from `refusal` on are not supported. They are accepted empty, since clients send
    answers back with them.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | Annotated[list[TextContent], LONG] | None, Field(validate_default=True)
    ] = None
    tool_calls: Annotated[list[Call], LONG] | None = None
    tool_call_id: str | None = None
    name: Annotated[str | None, _Note] = None
    reasoning_content: Annotated[str | None, _Note] = None
    refusal: None = None
    audio: None = None
    images: Empty | None = None
    function_call: None = None
    prefix: Off | None = None

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
    def plain(self) -> dict[str, Any]:
        """The message for chat templates; `developer` is OpenAI's newer name for `system`."""
        text = self.content or ""
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        plain: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": text,
        }
        given: dict[str, Any] = {}
        if self.role == "tool":
            given = {"tool_call_id": self.tool_call_id, "name": self.name}
        elif self.role == "assistant":
            calls = [call.model_dump(exclude_none=True) for call in self.tool_calls or ()]
            given = {"tool_calls": calls, "reasoning_content": self.reasoning_content}
        return plain | {name: value for name, value in given.items() if value}
