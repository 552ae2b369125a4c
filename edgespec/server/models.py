"""`GET /v1/models`: what is served, and what it can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgespec.api.llm import LLM
from edgespec.runtime.speculation.generation import NO_DRAFT
from edgespec.runtime.text.answer_forms import call_form, thinking_form
from edgespec.runtime.text.infill import InfillFormat
from edgespec.server.answers import Json
from edgespec.server.endpoint import Served

CAPABILITIES: Mapping[str, Callable[[LLM], bool]] = {
    "completion": lambda llm: True,
    "chat": lambda llm: llm.tokenizer.has_chat_template,
    "infill": lambda llm: InfillFormat.known(llm.tokenizer),
    "tools": lambda llm: call_form(llm.tokenizer.chat_source) is not None,
    "reasoning": lambda llm: thinking_form(llm.tokenizer.chat_source) is not None,
}
"""What a model that makes texts may be able to do, by the name that clients see."""


def capabilities(llm: LLM) -> list[str]:
    """Returns what a model can do: those of `CAPABILITIES`, or `embedding` alone."""
    if llm.bundle.target.embedding is not None:
        return ["embedding"]
    return [name for name, holds in CAPABILITIES.items() if holds(llm)]


class ModelRoutes:
    """The routes about the model.

    Args:
        served: model that is served.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        llm = served.service.llm
        able = capabilities(llm)
        self._facts: Json = {
            "id": served.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "edgespec",
            # By the names of OpenRouter and of vLLM, which clients look for.
            "context_length": llm.context_length,
            "max_model_len": llm.context_length,
            "capabilities": able,
            "edgespec": {
                "chat": "chat" in able,
                "draft": llm.draft if "embedding" not in able else NO_DRAFT,
            },
        }

    async def all(self, _request: Request) -> Response:
        """Lists the model."""
        return JSONResponse({"object": "list", "data": [self._facts]})

    async def one(self, request: Request) -> Response:
        """Describes the model of a name."""
        self._served.require(request.path_params["model"])
        return JSONResponse(self._facts)
