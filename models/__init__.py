"""Reads checkpoints: configs, descriptions of layers, and weights, which are loaded lazily."""

from __future__ import annotations

from edgespec.models.checkpoint import ARCHITECTURES, Checkpoint, load_checkpoint
from edgespec.models.config import ModelConfig
from edgespec.models.layers import Attention, Decoder, Linear, Mlp, Norm, Sublayer
from edgespec.models.rope import Rope
from edgespec.models.tensors import TensorStore

__all__ = [
    "ARCHITECTURES",
    "Attention",
    "Checkpoint",
    "Decoder",
    "Linear",
    "Mlp",
    "ModelConfig",
    "Norm",
    "Rope",
    "Sublayer",
    "TensorStore",
    "load_checkpoint",
]
