"""What people would use in edgespec's place: one module per peer, one protocol (`base`).

A peer runs in a process and a virtual environment of its own. Its module is imported on both
sides, so what only the peer has is imported inside its methods.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from peers.base import Peer

PEERS = {
    "edgespec": ("edgespec", "PEER"),
    "edgespec-int8": ("edgespec", "PEER_INT8"),
    "edgespec-fp32": ("edgespec", "PEER_FP32"),
    "edgespec-gguf": ("edgespec", "PEER_GGUF"),
    "llama.cpp": ("llama_cpp", "PEER"),
    "llama.cpp-q8": ("llama_cpp", "PEER_Q8"),
    "llama.cpp-gguf": ("llama_cpp", "PEER_GGUF"),
    "xllamacpp": ("xllamacpp", "PEER"),
    "ik_llama.cpp": ("ik_llama_cpp", "PEER"),
    "openvino-genai": ("openvino_genai", "PEER"),
    "openvino-genai-f32": ("openvino_genai", "PEER_F32"),
    "onnxruntime-genai": ("onnxruntime_genai", "PEER"),
    "transformers": ("transformers", "PEER"),
}
"""A module of this package and what it calls the peer, by the peer's name."""

BY_NAME_ALONE = (
    "edgespec-int8", "edgespec-fp32", "edgespec-gguf", "llama.cpp-gguf", "xllamacpp",
    "ik_llama.cpp",
)  # fmt: skip
"""Of these, those that a comparison leaves out unless they are asked for."""


def peer(name: str) -> Peer:
    """The peer of that name."""
    module, variable = PEERS[name]
    return cast("Peer", getattr(import_module(f"peers.{module}"), variable))
