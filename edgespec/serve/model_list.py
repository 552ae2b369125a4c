"""`GET /v1/models`: what is served, whether it is loaded, and what it can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgespec.llm.options import conversational
from edgespec.runtime.speculation.generation import NO_DRAFT
from edgespec.runtime.text.infill import InfillFormat
from edgespec.runtime.text.thinking import thinking_form
from edgespec.runtime.text.tools.forms import call_form
from edgespec.serve.models import Models
from edgespec.serve.protocols.fields import Json
from edgespec.serve.served_model import ServedModel

CAPABILITIES: Mapping[str, Callable[[ServedModel], bool]] = {
    "completion": lambda model: True,
    "chat": lambda model: model.tokenizer.has_chat_template,
    "infill": lambda model: InfillFormat.known(model.tokenizer),
    "tools": lambda model: call_form(model.tokenizer.chat_source) is not None,
    "reasoning": lambda model: thinking_form(model.tokenizer.chat_source) is not None,
    "images": lambda model: model.bundle.target.vision is not None,
}
"""What a model that makes texts may be able to do, by the name that clients see."""


def capabilities(model: ServedModel) -> list[str]:
    """Returns what a model can do: those of `CAPABILITIES`, or `embedding` or `rerank` alone."""
    if not model.bundle.target.writes:
        return ["embedding" if model.bundle.target.ranking is None else "rerank"]
    return [name for name, holds in CAPABILITIES.items() if holds(model)]


def model_routes(models: Models) -> list[Route]:
    """Returns the routes that tell of the models."""
    told = _ModelList(models)
    return [
        *(Route(path, told.list) for path in ("/v1/models", "/v1/models/")),
        Route("/v1/models/{model:path}", told.one),
        Route("/lora-adapters", told.adapters),
    ]


class _ModelList:
    """`GET /v1/models`: what is served, whether it is loaded, and what it can do."""

    def __init__(self, models: Models) -> None:
        self.all = models
        self._created = int(time.time())
        self._able = {each.name: capabilities(each) for each in models.served}

    async def list(self, _request: Request) -> Response:
        data = [self._facts(each, name) for each in self.all.served for name in each.names]
        return JSONResponse({"object": "list", "data": data})

    async def one(self, request: Request) -> Response:
        name = request.path_params["model"]
        model = self.all.find(name)
        adapter = model.adapter(name)
        return JSONResponse(self._facts(model, model.name if adapter is None else adapter.name))

    async def adapters(self, _request: Request) -> Response:
        """Answers as llama.cpp's server does, of the first model; no paths are told."""
        files = enumerate(self.all.served[0].adapters)
        told = [{"id": n, "path": each.path.name, "scale": each.scale} for n, each in files]
        return JSONResponse(told)

    def _facts(self, model: ServedModel, name: str) -> Json:
        able = self._able[model.name]
        length = model.plan.context
        sampling = conversational(model.bundle.manifest.sampling)
        return {
            "id": name,
            "object": "model",
            **({} if name == model.name else {"parent": model.name}),
            "created": self._created,
            "owned_by": "edgespec",
            # By the names of OpenRouter, of vLLM and of llama-server, which clients look for.
            "context_length": length,
            "max_model_len": length,
            "status": {"value": self.all.status(model)},
            "capabilities": able,
            "edgespec": {
                "chat": "chat" in able,
                "draft": NO_DRAFT if "embedding" in able else model.options.draft,
                **({} if "embedding" in able else {"sampling": sampling}),
            },
        }
