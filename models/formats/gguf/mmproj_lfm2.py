"""What reads pictures in a GGUF file beside a model's: of LFM2-VL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.fields import ConfigFields
from edgespec.models.formats.gguf.names import Naming
from edgespec.models.formats.gguf.tensors import GgufTensors
from edgespec.models.vision.lfm2_vl import LFM2_PIXELS, read_lfm2_tower

if TYPE_CHECKING:
    from edgespec.models.formats.gguf.header import Header
    from edgespec.models.vision.grid import GridTower

LFM2 = "lfm2"
"""The type of projection."""

_VISION = "clip.vision"
_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "patch_size": "patch_size",
}
_VIT, _PROJECTION = "vision_tower", "multi_modal_projector"
_LAYER = {
    "ln1": "layer_norm1",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_MODEL = {
    "patch_embd": f"{_VIT}.embeddings.patch_embedding",
    "position_embd": f"{_VIT}.embeddings.position_embedding",
    "post_ln": f"{_VIT}.post_layernorm",
    "mm.input_norm": f"{_PROJECTION}.layer_norm",
    "mm.1": f"{_PROJECTION}.linear_1",
    "mm.2": f"{_PROJECTION}.linear_2",
}


def read_lfm2(
    metadata: ConfigFields, header: Header, config: ConfigFields, token: int
) -> GridTower:
    """Describes a tower, and checks its tensors; see `read_grid`.

    How pictures are cut is in llama.cpp's code, as transformers has it by default.
    """
    file = metadata.source
    vision: dict[str, object] = {
        own: metadata.integer(f"{_VISION}.{name}") for own, name in _SIZES.items()
    }
    factor = metadata.integer(f"{_VISION}.projector.scale_factor")
    entries = header.entries
    for name in ("v.position_embd.weight", "mm.1.weight"):
        if name not in entries:
            raise metadata.invalid("clip.projector_type", f"has no tensor {name}")
    values = {
        "image_token_id": token,
        "downsample_factor": factor,
        "projector_hidden_size": entries["mm.1.weight"].shape[0],
        "projector_bias": "mm.1.bias" in entries,
        "projector_use_layernorm": "mm.input_norm.weight" in entries,
        "vision_config": {
            **vision,
            "num_hidden_layers": metadata.integer(f"{_VISION}.block_count", most=len(entries)),
            "num_patches": entries["v.position_embd.weight"].shape[0],
            "layer_norm_eps": metadata.number(f"{_VISION}.attention.layer_norm_epsilon"),
        },
        "text_config": config.values,
    }
    settings = {
        **LFM2_PIXELS,
        "encoder_patch_size": vision["patch_size"],
        "downsample_factor": factor,
        **{name: metadata.get(f"{_VISION}.{name}") for name in ("image_mean", "image_std")},
    }
    named = {name.removeprefix("v."): entry for name, entry in entries.items()}
    naming = Naming("clip", layer=_LAYER, layers=f"{_VIT}.encoder.layers", model=_MODEL)
    tensors = GgufTensors(file, named, naming, len(named), {})
    return read_lfm2_tower(tensors, ConfigFields(values, file), ConfigFields(settings, file))
