"""What a checkpoint is: its config, its layers by name and shape, and its weights read lazily.

Public names are loaded lazily, so that the pair in `edgespec.models.embedded` is found without
importing readers of checkpoints.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.models.checkpoint import ARCHITECTURES, Checkpoint, load_checkpoint
    from edgespec.models.config import ModelConfig
    from edgespec.models.decoder import Decoder
    from edgespec.models.elements import Linear, Norm
    from edgespec.models.layers import Attention, Injection, Mlp, MlpAndMoe, Moe, Sublayer
    from edgespec.models.recurrent import GatedDelta, ShortConvolution
    from edgespec.models.rope import Rope
    from edgespec.models.safetensors_folder import SafetensorsFolder
    from edgespec.models.tensors import TensorSource

_MODULES = {
    "checkpoint": ("ARCHITECTURES", "Checkpoint", "load_checkpoint"),
    "config": ("ModelConfig",),
    "decoder": ("Decoder",),
    "elements": ("Linear", "Norm"),
    "layers": ("Attention", "Injection", "Mlp", "MlpAndMoe", "Moe", "Sublayer"),
    "rope": ("Rope",),
    "safetensors_folder": ("SafetensorsFolder",),
    "tensors": ("TensorSource",),
}  # fmt: skip

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
