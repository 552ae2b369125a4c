"""Reads checkpoints: configs, descriptions of layers, and weights, which are loaded lazily."""

from __future__ import annotations

from edgespec.models.checkpoint import ARCHITECTURES, Checkpoint, load_checkpoint
from edgespec.models.config import ModelConfig
from edgespec.models.layers import Attention, Decoder, Linear, Mlp, Norm, Sublayer
from edgespec.models.rope import Rope
from edgespec.models.safetensors_folder import SafetensorsFolder
from edgespec.models.tensors import TensorSource

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
    "SafetensorsFolder",
    "Sublayer",
    "TensorSource",
    "load_checkpoint",
]
