"""Speculative decoding on the hardware you own, with exactly the model's own output.

Public names are loaded lazily, so that ``import edgespec`` imports neither onnxruntime nor
openvino.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec import errors, export
    from edgespec.llm.chat import ChatOptions
    from edgespec.llm.llm import LLM
    from edgespec.llm.load.options import LoadOptions
    from edgespec.llm.options import GenerationOptions
    from edgespec.llm.result import Result
    from edgespec.llm.sessions import Session
    from edgespec.llm.stream import Stream
    from edgespec.system.children import freeze_support

__version__ = "0.1.0"

_CHECKOUT = Path(__file__).resolve().parent.parent
if (_CHECKOUT / "pyproject.toml").exists():
    # In a checkout, export, models and runtime lie beside this folder; a wheel has them inside it.
    __path__.append(str(_CHECKOUT))

_LAZY = {
    "LLM": "edgespec.llm.llm",
    "Session": "edgespec.llm.sessions",
    "Stream": "edgespec.llm.stream",
    "Result": "edgespec.llm.result",
    "LoadOptions": "edgespec.llm.load.options",
    "GenerationOptions": "edgespec.llm.options",
    "ChatOptions": "edgespec.llm.chat",
    "freeze_support": "edgespec.system.children",
}

_MODULES = ("errors", "export")

__all__ = [
    "LLM",
    "ChatOptions",
    "GenerationOptions",
    "LoadOptions",
    "Result",
    "Session",
    "Stream",
    "__version__",
    "errors",
    "export",
    "freeze_support",
]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _MODULES:
        return import_module(f"edgespec.{name}")
    raise AttributeError(f"module 'edgespec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
