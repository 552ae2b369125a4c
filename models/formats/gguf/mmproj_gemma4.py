"""What reads pictures in a GGUF file beside a model's: of Gemma 4."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.fields import ConfigFields
from edgespec.models.formats.gguf.names import Naming
from edgespec.models.formats.gguf.tensors import GgufTensors
from edgespec.models.vision.gemma4 import PIXELS, read_patch_tower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.formats.gguf.header import GGUFEntry, Header
    from edgespec.models.vision.gemma4 import PatchTower

GEMMA4V = "gemma4v"
"""The type of projection."""

_VISION, _COLOURS, _FACTOR = "clip.vision", 3, 3
_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count",
    "patch_size": "patch_size",
}
_PATCHES, _PLACES = "v.patch_embd.weight", "v.position_embd.weight"
_TOWER = "model.vision_tower"
_EMBEDDING = f"{_TOWER}.patch_embedder.input_proj.weight"
_MATRICES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = {
    **_MATRICES,
    **{f"{name}.weight": f"{own}.linear.weight" for name, own in _MATRICES.items()},
    "ln1": "input_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_post_norm": "post_attention_layernorm",
    "ln2": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
_MODEL = {
    "patch_embd.weight": _EMBEDDING,
    "position_embd.weight": f"{_TOWER}.patch_embedder.position_embedding_table",
    "std_bias": f"{_TOWER}.std_bias",
    "std_scale": f"{_TOWER}.std_scale",
    "mm.input_projection": "model.embed_vision.embedding_projection",
}


def read_gemma4(
    metadata: ConfigFields, header: Header, config: ConfigFields, tokens: Mapping[str, int]
) -> PatchTower:
    """Describes a tower, and checks its tensors; see `read_grid`.

    Args:
        metadata: See there.
        header: See there.
        config: See there.
        tokens: Tokens of pictures by their fields in transformers.
    """
    file = metadata.source
    entries = header.entries
    norm = "v.blk.0.attn_q_norm.weight"
    for name, dimensions in ((_PATCHES, 4), (_PLACES, 3), (norm, 1)):
        if name not in entries or len(entries[name].shape) != dimensions:
            raise metadata.invalid(
                "clip.vision.projector_type", f"has no tensor {name} of {dimensions} dimensions"
            )
    vision: dict[str, object] = {
        own: metadata.integer(f"{_VISION}.{name}") for own, name in _SIZES.items()
    }
    side = vision["patch_size"]
    if (shape := entries[_PATCHES].shape)[1:] != (_COLOURS, side, side):
        raise metadata.invalid(
            f"{_VISION}.patch_size", f"must be that of {_PATCHES}, which has shape {shape}"
        )
    factor = metadata.integer(f"{_VISION}.projector.scale_factor", _FACTOR)
    sizes = {"patch_size": side, "pooling_kernel_size": factor}
    # No field says whether rows of a picture see each other: in models without inputs of layers.
    small = config.get("hidden_size_per_layer_input")
    values = {
        **tokens,
        "vision_config": {
            **vision,
            **sizes,
            "num_hidden_layers": metadata.integer(f"{_VISION}.block_count", most=len(entries)),
            "head_dim": entries[norm].shape[0],
            "rms_norm_eps": metadata.number(f"{_VISION}.attention.layer_norm_epsilon"),
            "position_embedding_size": entries[_PLACES].shape[1],
            "standardize": "v.std_bias" in entries,
            "use_clipped_linears": any(
                name.startswith("v.") and name.endswith(".input_min") for name in entries
            ),
        },
        "text_config": {
            **config.values,
            "use_bidirectional_attention": None if small else "vision",
        },
    }
    tensors = _source(file, entries)
    settings = ConfigFields({**PIXELS, **sizes}, file)
    return read_patch_tower(tensors, ConfigFields(values, file), settings)


def _source(file: str, entries: Mapping[str, GGUFEntry]) -> GgufTensors:
    """Returns the tensors by their names, and in the shapes, of transformers."""
    found = {name.removeprefix("v."): entry for name, entry in entries.items()}
    width, colours, side, _ = entries[_PATCHES].shape
    found["patch_embd.weight"] = replace(entries[_PATCHES], shape=(width, colours * side**2))
    order = np.arange(colours * side**2).reshape(colours, side**2).T.reshape(-1)
    naming = Naming("clip", layer=_LAYER, layers=f"{_TOWER}.encoder.layers", model=_MODEL)
    return GgufTensors(file, found, naming, len(found), {_EMBEDDING: order})
