"""What Ollama's API tells about models: here about one, which is always loaded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from edgespec.bundle import MANIFEST
from edgespec.runtime.plan import HOST
from edgespec.server.endpoint import Served
from edgespec.server.models import capabilities
from edgespec.server.ollama.answers import written
from edgespec.server.refusals import RequestError, shown

Json = dict[str, Any]

_NEVER = "3000-01-01T00:00:00Z"
_DEFAULT_TAG = "latest"
_CAPABILITIES = {
    "completion": "completion", "infill": "insert", "tools": "tools", "reasoning": "thinking",
    "embedding": "embedding",
}  # fmt: skip


def require(served: Served, name: str | None) -> None:
    """Checks that a client asks for the model that is served, with or without its tag.

    Raises:
        RequestError: if it asks for another one.
    """
    if name is None or _tagged(name) != _tagged(served.model):
        raise RequestError(
            404, f"model {shown(name)} not found: use {_tagged(served.model)!r}",
            "model_not_found", "model",
        )  # fmt: skip


def listed(served: Served) -> Json:
    """Returns the response of `/api/tags`."""
    return {"models": [{**_entry(served), "modified_at": _modified(served)}]}


def running(served: Served) -> Json:
    """Returns the response of `/api/ps`, with the memory in bytes that the model has reserved."""
    llm = served.service.llm
    demands = llm.plan.demands
    facts = {
        "size": sum(each.total for each in demands),
        "size_vram": sum(each.total for each in demands if each.memory != HOST),
        "expires_at": _NEVER,
        "context_length": llm.context_length,
    }
    return {"models": [{**_entry(served), **facts}]}


def described(served: Served) -> Json:
    """Returns the response of `/api/show`."""
    llm = served.service.llm
    target = llm.bundle.target
    family = target.architecture
    return {
        "license": "",
        "modelfile": f"FROM {_tagged(served.model)}\n",
        "parameters": "",
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
