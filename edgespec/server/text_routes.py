"""The routes of OpenAI's API that make texts: what each of them reads, and how it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from edgespec.server.answers import ChatAnswer, CompletionAnswer
from edgespec.server.asked import Asked
from edgespec.server.choices import choices
from edgespec.server.requests import ChatRequest, CompletionRequest
from edgespec.server.response_requests import ResponsesRequest
from edgespec.server.response_writer import ResponsesWriter
from edgespec.server.writers import Origin, Writer


@dataclass(frozen=True)
class TextRoute:
    """One of the routes.

    Attributes:
        bodies: class of the request bodies.
        writers: what makes the writer for a body of that class.
    """

    bodies: type[Asked]
    writers: Callable[[Any, Origin], Writer]


_chats = choices(ChatAnswer)

TEXT_ROUTES = {
    "/v1/completions": TextRoute(CompletionRequest, choices(CompletionAnswer)),
    "/v1/chat/completions": TextRoute(ChatRequest, _chats),
    "/v1/responses": TextRoute(ResponsesRequest, partial(ResponsesWriter, _chats)),
}
"""The routes by their paths."""
