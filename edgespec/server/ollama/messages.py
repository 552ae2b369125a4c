"""Messages and tools in the bodies of Ollama's API, and their translation to OpenAI's."""

from __future__ import annotations

import json
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
    """The function of a call, with its arguments as they are and not as a text."""

    name: str
    arguments: Json | None = None


class OllamaCall(Noted):
    """A call in a message of the assistant."""

    id: str | None = None
    function: OllamaCalled

    def translated(self) -> Json:
        """Returns the call of OpenAI's API."""
        arguments = json.dumps(self.function.arguments or {}, ensure_ascii=False)
        return {"id": self.id, "function": {"name": self.function.name, "arguments": arguments}}


class OllamaMessage(Noted):
    """A message of a conversation. Images are not supported, but accepted empty."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Empty | None = None
    tool_calls: Annotated[list[OllamaCall], LONG] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    def translated(self) -> Json:
        """Returns the message of OpenAI's API."""
        return {
            "role": self.role,
            "content": self.content or "",
            "reasoning_content": self.thinking,
            "tool_calls": [call.translated() for call in self.tool_calls or ()],
            "name": self.tool_name,
            "tool_call_id": self.tool_call_id,
        }
