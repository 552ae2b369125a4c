"""The messages of a conversation in the bodies of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from edgespec.server.fields import LONG, Empty, Off
from edgespec.server.tools import Call, Noted


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
    name: Any = None
    reasoning_content: Any = None
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
        if self.role == "tool":
            given = {"tool_call_id": self.tool_call_id, "name": self.name}
        else:
            calls = [call.model_dump(exclude_none=True) for call in self.tool_calls or ()]
            given = {"tool_calls": calls, "reasoning_content": self.reasoning_content}
        return plain | {name: value for name, value in given.items() if value}
