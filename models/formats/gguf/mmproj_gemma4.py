"""What reads pictures in a GGUF file beside a model's: of Gemma 4."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.fields import ConfigFields
from edgespec.models.formats.gguf.names import Naming
from edgespec.models.formats.gguf.tensors import GgufTensors
from edgespec.models.formats.parts import Parts, TensorRows
from edgespec.models.vision.gemma4 import PIXELS, read_patch_tower
from edgespec.models.vision.gemma4_unified import read_patch_embedder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from edgespec.models.formats.gguf.header import GGUFEntry, Header
    from edgespec.models.vision.gemma4 import PatchTower
    from edgespec.models.vision.gemma4_unified import PatchEmbedder

GEMMA4V = "gemma4v"
"""The type of projection."""

GEMMA4UV = "gemma4uv"
"""The same of Gemma 4 12B, which has no ViT."""

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
_PROJECTION = {"mm.input_projection": "model.embed_vision.embedding_projection"}
_MODEL = {
    "patch_embd.weight": _EMBEDDING,
    "position_embd.weight": f"{_TOWER}.patch_embedder.position_embedding_table",
    "std_bias": f"{_TOWER}.std_bias",
    "std_scale": f"{_TOWER}.std_scale",
    **_PROJECTION,
}
_EMBEDDER = "model.vision_embedder"
_UNIFIED = {
    "patch_norm.1": f"{_EMBEDDER}.patch_ln1",
    "patch_embd": f"{_EMBEDDER}.patch_dense",
    "patch_norm.2": f"{_EMBEDDER}.patch_ln2",
    "position_embd.weight": f"{_EMBEDDER}.pos_embedding",
    "patch_norm.3": f"{_EMBEDDER}.pos_norm",
    **_PROJECTION,
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
    _check_dimensions(metadata, entries, {_PATCHES: 4, _PLACES: 3, norm: 1})
    vision: dict[str, object] = {
        own: metadata.integer(f"{_VISION}.{name}") for own, name in _SIZES.items()
    }
    side = vision["patch_size"]
    _check_patches(metadata, entries[_PATCHES], (_COLOURS, side, side))
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


def read_gemma4_unified(
    metadata: ConfigFields, header: Header, config: ConfigFields, tokens: Mapping[str, int]
) -> PatchEmbedder:
    """Describes what Gemma 4 12B has instead of a tower; see `read_gemma4`."""
    file = metadata.source
    entries = header.entries
    _check_dimensions(metadata, entries, {_PATCHES: 2, _PLACES: 3})
    sizes = {
        "patch_size": metadata.integer(f"{_VISION}.patch_size"),
        "pooling_kernel_size": metadata.integer(f"{_VISION}.projector.scale_factor", _FACTOR),
    }
    side = sizes["patch_size"] * sizes["pooling_kernel_size"]
    times = f"times projector.scale_factor={sizes['pooling_kernel_size']} "
    _check_patches(metadata, entries[_PATCHES], (_COLOURS * side**2,), times)
    values = {
        **tokens,
        "vision_config": {
            **sizes,
            "mm_embed_dim": entries[_PATCHES].shape[0],
            "mm_posemb_size": entries[_PLACES].shape[1],
            "rms_norm_eps": metadata.number(f"{_VISION}.attention.layer_norm_epsilon"),
        },
        # Rows of a picture see each other; llama.cpp has that in its code.
        "text_config": {**config.values, "use_bidirectional_attention": "vision"},
    }
    order = _by_pixel(side)
    dense = f"{_EMBEDDER}.patch_dense.weight"
    found = {name.removeprefix("v."): entry for name, entry in entries.items()}
    tensors = GgufTensors(file, found, Naming("clip", model=_UNIFIED), 0, {dense: order})
    norms = (f"{_EMBEDDER}.patch_ln1.{kind}" for kind in ("weight", "bias"))
    parts = Parts(tensors, {name: TensorRows(name, order, len(order)) for name in norms})
    settings = ConfigFields({**PIXELS, **sizes}, file)
    return read_patch_embedder(parts, ConfigFields(values, file), settings)


def _check_dimensions(
    metadata: ConfigFields, entries: Mapping[str, GGUFEntry], asked: Mapping[str, int]
) -> None:
    for name, dimensions in asked.items():
        if name not in entries or len(entries[name].shape) != dimensions:
            raise metadata.invalid(
                "clip.vision.projector_type", f"has no tensor {name} of {dimensions} dimensions"
            )


def _check_patches(
    metadata: ConfigFields, entry: GGUFEntry, shape: tuple[object, ...], times: str = ""
) -> None:
    """Checks the shape of what a row of the matrix of patches is multiplied with."""
    if entry.shape[1:] != shape:
        raise metadata.invalid(
            f"{_VISION}.patch_size",
            f"{times}must be that of {_PATCHES}, which has shape {entry.shape}",
        )


def _by_pixel(side: int) -> NDArray[np.int64]:
    """Returns where the numbers of a square lie in a file, which has one colour behind another."""
    return np.arange(_COLOURS * side**2).reshape(_COLOURS, side**2).T.reshape(-1)


def _source(file: str, entries: Mapping[str, GGUFEntry]) -> GgufTensors:
    """Returns the tensors by their names, and in the shapes, of transformers."""
    found = {name.removeprefix("v."): entry for name, entry in entries.items()}
    width, colours, side, _ = entries[_PATCHES].shape
    found["patch_embd.weight"] = replace(entries[_PATCHES], shape=(width, colours * side**2))
    order = _by_pixel(side)
    naming = Naming("clip", layer=_LAYER, layers=f"{_TOWER}.encoder.layers", model=_MODEL)
    return GgufTensors(file, found, naming, len(found), {_EMBEDDING: order})
