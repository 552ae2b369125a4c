"""What Ollama's API tells about the models."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import edgespec
from edgespec.bundle import TARGET
from edgespec.llm.options import conversational
from edgespec.models.named import SUFFIX
from edgespec.runtime.plan import HOST
from edgespec.serve.model_list import capabilities
from edgespec.serve.models import Models
from edgespec.serve.protocols.fields import Json
from edgespec.serve.protocols.ollama.answers import utc_time
from edgespec.serve.protocols.ollama.requests import OllamaShowRequest
from edgespec.serve.refusals import RequestError
from edgespec.serve.served_model import ServedModel, tagged

PREFIX = "/api/"
"""How the paths of all routes begin; their errors have Ollama's format."""

# The version of Ollama whose API this is. Clients compare its numbers with what they need.
_VERSION = "0.12.11"
_NOT_HERE = {
    "pull": "POST", "push": "POST", "create": "POST", "copy": "POST", "delete": "DELETE",
}  # fmt: skip
_NEVER = "3000-01-01T00:00:00Z"
_PENALTY = {"repetition_penalty": "repeat_penalty"}  # Ollama's name
_CAPABILITIES = {
    "completion": "completion", "infill": "insert", "tools": "tools", "reasoning": "thinking",
    "embedding": "embedding", "images": "vision",
}  # fmt: skip


def routes(models: Models) -> list[Route]:
    """Returns the routes that are asked without a body, and those that are not here."""

    async def tags(_request: Request) -> Response:
        found = [
            {**_entry(each), "modified_at": _modified(each), "status": models.status(each)}
            for each in models.served
        ]
        return JSONResponse({"models": found})

    async def loaded(_request: Request) -> Response:
        found = [_running(each) for each in models.served if each.llm is not None]
        return JSONResponse({"models": found})

    async def version(_request: Request) -> Response:
        return JSONResponse({"version": _VERSION, "edgespec": edgespec.__version__})

    return [
        Route(f"{PREFIX}tags", tags),
        Route(f"{PREFIX}ps", loaded),
        Route(f"{PREFIX}version", version),
        *(Route(PREFIX + name, _not_here, methods=[method]) for name, method in _NOT_HERE.items()),
    ]


async def _not_here(request: Request) -> Response:
    raise RequestError(
        400,
        f"{request.scope['path']} is not supported: this server has the models that it was "
        "started with: /openapi.json lists all routes",
        "unsupported",
    )


def _running(model: ServedModel) -> Json:
    """Returns a model with the memory in bytes that is planned for it."""
    sizes = {each.memory: each.total for each in model.plan.demands}
    return {
        **_entry(model),
        "size": sum(sizes.values()),
        "size_vram": sum(size for memory, size in sizes.items() if memory != HOST),
        "expires_at": _expiry(model.left),
        "context_length": model.plan.context,
    }


def describe_model(_body: OllamaShowRequest, model: ServedModel) -> Json:
    """Returns what `/api/show` tells of a model."""
    target = model.bundle.target
    family = target.architecture
    return {
        "license": "",
        "modelfile": f"FROM {tagged(model.name)}\n",
        "parameters": "\n".join(  # as lines of a Modelfile
            f"{_PENALTY.get(name, name):<30} {value:g}"
            for name, value in conversational(model.bundle.manifest.sampling).items()
        ),
        "template": model.tokenizer.chat_source or "{{ .Prompt }}",
        "details": _details(model),
        "model_info": {
            "general.architecture": family,
            "general.basename": model.name,
            "general.parameter_count": target.parameters,
            f"{family}.attention.head_count": target.heads,
            f"{family}.attention.head_count_kv": target.kv_heads,
            f"{family}.block_count": target.layers,
            f"{family}.context_length": model.plan.context,
            f"{family}.embedding_length": target.vector_size,
            f"{family}.vocab_size": target.vocab_size,
        },
        "capabilities": [_CAPABILITIES[n] for n in capabilities(model) if n in _CAPABILITIES],
        "modified_at": _modified(model),
    }


def _entry(model: ServedModel) -> Json:
    bundle = model.bundle
    name = tagged(model.name)
    facts = {"size": bundle.size, "digest": bundle.digest, "details": _details(model)}
    return {"name": name, "model": name, **facts}


def _expiry(left: float) -> str:
    return _NEVER if math.isinf(left) else utc_time(datetime.now(UTC) + timedelta(seconds=left))


def _details(model: ServedModel) -> Json:
    target = model.bundle.target
    source = model.bundle.manifest.provenance.get(TARGET, "")
    return {
        "parent_model": "",
        "format": "gguf" if source.lower().endswith(SUFFIX) else "onnx",
        "family": target.architecture,
        "families": [target.architecture],
        "parameter_size": _size(target.parameters),
        "quantization_level": model.bundle.quantization,
    }


def _modified(model: ServedModel) -> str:
    return utc_time(datetime.fromtimestamp(model.modified, UTC))


def _size(parameters: int) -> str:
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.4g}{letter}"
    return str(parameters)
