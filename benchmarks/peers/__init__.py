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
    "edgespec": "edgespec",
    "llama.cpp": "llama_cpp",
    "openvino-genai": "openvino_genai",
    "onnxruntime-genai": "onnxruntime_genai",
    "transformers": "transformers",
}
"""Modules of this package, by the peer's name."""


def peer(name: str) -> Peer:
    """The peer of that name."""
    return cast("Peer", import_module(f"peers.{PEERS[name]}").PEER)
