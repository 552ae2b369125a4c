"""The routes of Ollama's API: texts and vectors, and what it tells about the one model."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Send

import edgespec
from edgespec.bundle import MANIFEST
from edgespec.runtime.plan import HOST
from edgespec.server.bodies import Json
from edgespec.server.embeddings import EmbeddingsEndpoint
from edgespec.server.endpoint import JsonEndpoint, SendJson, Served, TextEndpoint
from edgespec.server.ollama.answers import OllamaChatAnswer, OllamaGenerateAnswer, written
from edgespec.server.ollama.requests import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from edgespec.server.refusals import RequestError, shown
from edgespec.server.routes import capabilities

PREFIX = "/api/"
"""How the paths of all routes begin; their errors have Ollama's format."""

# The version of Ollama whose API this is. Clients compare its numbers with what they need.
_VERSION = "0.12.11"
_NOT_HERE = {
    "pull": "POST", "push": "POST", "create": "POST", "copy": "POST", "delete": "DELETE",
}  # fmt: skip
_NEVER = "3000-01-01T00:00:00Z"
_DEFAULT_TAG = "latest"
_PENALTY = {"repetition_penalty": "repeat_penalty"}  # Ollama's name
_CAPABILITIES = {
    "completion": "completion", "infill": "insert", "tools": "tools", "reasoning": "thinking",
    "embedding": "embedding", "images": "vision",
}  # fmt: skip


def routes(served: Served) -> list[Route]:
    """Returns the routes for the model that is served."""

    async def tags(_request: Request) -> Response:
        entry = {**_entry(served), "modified_at": _modified(served)}
        return JSONResponse({"models": [entry]})

    async def loaded(_request: Request) -> Response:
        return JSONResponse({"models": [_running(served)]})

    async def version(_request: Request) -> Response:
        return JSONResponse({"version": _VERSION, "edgespec": edgespec.__version__})

    lenient: Json = {"require": _require}
    generating, chatting = OllamaGenerateRequest, OllamaChatRequest
    made = {
        "chat": _Texts(served, chatting, OllamaChatAnswer, **lenient),
        "generate": _Texts(served, generating, OllamaGenerateAnswer, **lenient),
        "embed": EmbeddingsEndpoint(served, OllamaEmbedRequest, **lenient),
        "embeddings": EmbeddingsEndpoint(served, OllamaEmbeddingsRequest, **lenient),
        "show": JsonEndpoint(served, OllamaShowRequest, lambda _: _described(served), **lenient),
    }
    return [
        *(Route(PREFIX + name, endpoint, methods=["POST"]) for name, endpoint in made.items()),
        Route(f"{PREFIX}tags", tags),
        Route(f"{PREFIX}ps", loaded),
        Route(f"{PREFIX}version", version),
        *(Route(PREFIX + name, _not_here, methods=[method]) for name, method in _NOT_HERE.items()),
    ]


class _Texts(TextEndpoint):
    async def answer(self, body: Any, send_json: SendJson, send: Send) -> None:
        if body.silent:
            await send_json(self.writer(body).loaded)
        else:
            await super().answer(body, send_json, send)


async def _not_here(request: Request) -> Response:
    raise RequestError(
        400, f"{request.scope['path']} is not supported: this server has one model, which it was "
        "started with, and makes texts with it: /openapi.json lists all routes",
        "unsupported",
    )  # fmt: skip


def _require(name: str | None, served: str) -> None:
    """Checks that a client asks for the model that is served, with or without its tag."""
    if name is None or _tagged(name) != _tagged(served):
        raise RequestError(
            404, f"model {shown(name)} not found: use {_tagged(served)!r}", "model_not_found",
            "model",
        )  # fmt: skip


def _running(served: Served) -> Json:
    """Returns the model with the memory in bytes that is planned for it."""
    llm = served.service.llm
    sizes = {each.memory: each.total for each in llm.plan.demands}
    return {
        **_entry(served),
        "size": sum(sizes.values()),
        "size_vram": sum(size for memory, size in sizes.items() if memory != HOST),
        "expires_at": _NEVER,
        "context_length": llm.context_length,
    }


def _described(served: Served) -> Json:
    llm = served.service.llm
    target = llm.bundle.target
    family = target.architecture
    return {
        "license": "",
        "modelfile": f"FROM {_tagged(served.model)}\n",
        "parameters": "\n".join(_parameters(llm.sampling)),
        "template": llm.tokenizer.chat_source or "{{ .Prompt }}",
        "details": _details(served),
        "model_info": {
            "general.architecture": family,
            "general.basename": served.model,
            "general.parameter_count": target.parameters,
            f"{family}.attention.head_count": target.heads,
            f"{family}.attention.head_count_kv": target.kv_heads,
            f"{family}.block_count": target.layers,
            f"{family}.context_length": llm.context_length,
            f"{family}.embedding_length": target.hidden_size,
            f"{family}.vocab_size": target.vocab_size,
        },
        "capabilities": [_CAPABILITIES[n] for n in capabilities(llm) if n in _CAPABILITIES],
        "modified_at": _modified(served),
    }


def _entry(served: Served) -> Json:
    bundle, name = served.service.llm.bundle, _tagged(served.model)
    facts = {"size": bundle.size, "digest": bundle.digest, "details": _details(served)}
    return {"name": name, "model": name, **facts}


def _details(served: Served) -> Json:
    target = served.service.llm.bundle.target
    return {
        "parent_model": "",
        "format": "onnx",
        "family": target.architecture,
        "families": [target.architecture],
        "parameter_size": _size(target.parameters),
        "quantization_level": target.precision.weights,
    }


def _parameters(sampling: Mapping[str, float]) -> list[str]:
    """Returns how conversations are sampled, as lines of a Modelfile."""
    return [f"{_PENALTY.get(name, name):<30} {value:g}" for name, value in sampling.items()]


def _modified(served: Served) -> str:
    seconds = (served.service.llm.bundle.path / MANIFEST).stat().st_mtime
    return written(datetime.fromtimestamp(seconds, UTC))


def _tagged(name: str) -> str:
    """Returns a name with its tag, which comes after the last slash."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:{_DEFAULT_TAG}"


def _size(parameters: int) -> str:
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.4g}{letter}"
    return str(parameters)
