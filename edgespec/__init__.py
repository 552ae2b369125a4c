"""Speculative decoding on the hardware you own, with exactly the model's own output.

Public names are loaded lazily, so that ``import edgespec`` imports neither onnxruntime nor
openvino.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec import export
    from edgespec.llm.llm import LLM
    from edgespec.llm.result import Result
    from edgespec.llm.stream import Stream

__version__ = "0.1.0"

_CHECKOUT = Path(__file__).resolve().parent.parent
if (_CHECKOUT / "pyproject.toml").exists():
    # In a checkout, export, models and runtime lie beside this folder; a wheel has them inside it.
    __path__.append(str(_CHECKOUT))

_LAZY = {
    "LLM": "edgespec.llm.llm",
    "Result": "edgespec.llm.result",
    "Stream": "edgespec.llm.stream",
}

_MODULES = ("export",)

__all__ = ["LLM", "Result", "Stream", "__version__", "export"]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _MODULES:
        return import_module(f"edgespec.{name}")
    raise AttributeError(f"module 'edgespec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
