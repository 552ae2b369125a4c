"""What a checkpoint is: its config, its layers by name and shape, and its weights read lazily.

Public names are loaded lazily, so that the pair in `edgespec.models.embedded` is found without
importing readers of checkpoints.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.models.architectures import ARCHITECTURES
    from edgespec.models.checkpoint import Checkpoint, load_checkpoint
    from edgespec.models.config import ModelConfig
    from edgespec.models.formats.safetensors_folder import SafetensorsFolder
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Linear, Norm
    from edgespec.models.layers.recurrent import GatedDelta, ShortConvolution
    from edgespec.models.layers.rope import Rope
    from edgespec.models.layers.sublayers import Attention, Injection, Mlp, MlpAndMoe, Moe, Sublayer

_MODULES = {
    "architectures": ("ARCHITECTURES",),
    "checkpoint": ("Checkpoint", "load_checkpoint"),
    "config": ("ModelConfig",),
    "formats.safetensors_folder": ("SafetensorsFolder",),
    "formats.tensors": ("TensorSource",),
    "layers.decoder": ("Decoder",),
    "layers.elements": ("Linear", "Norm"),
    "layers.recurrent": ("GatedDelta", "ShortConvolution"),
    "layers.rope": ("Rope",),
    "layers.sublayers": ("Attention", "Injection", "Mlp", "MlpAndMoe", "Moe", "Sublayer"),
}

__all__ = [
    "ARCHITECTURES", "Attention", "Checkpoint", "Decoder", "GatedDelta", "Injection", "Linear",
    "Mlp", "MlpAndMoe", "ModelConfig", "Moe", "Norm", "Rope", "SafetensorsFolder",
    "ShortConvolution", "Sublayer", "TensorSource", "load_checkpoint",
]  # fmt: skip


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
