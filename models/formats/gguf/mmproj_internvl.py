"""What reads pictures in a GGUF file beside a model's: of InternVL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.fields import ConfigFields
from edgespec.models.formats.gguf.names import Naming
from edgespec.models.formats.gguf.tensors import GgufTensors
from edgespec.models.vision.internvl import INTERNVL_PIXELS, read_internvl_tower

if TYPE_CHECKING:
    from edgespec.models.formats.gguf.header import Header
    from edgespec.models.vision.grid import GridTower

CONTEXT = "<IMG_CONTEXT>"
"""The token that stands for a row of a picture."""

_VISION = "clip.vision"
_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "image_size": "image_size",
    "patch_size": "patch_size",
}
_TILES = {"min_patches": ("preproc_min_tiles", 1), "max_patches": ("preproc_max_tiles", 12)}
# Width and layers of the tower whose norms subtract no mean, as llama.cpp has it in its code.
_LARGEST = 3200, 45

_TOWER, _PROJECTION = "vision_tower", "multi_modal_projector"
_LAYER = {
    "ln1": "layernorm_before",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_q_norm": "attention.q_norm",
    "attn_k_norm": "attention.k_norm",
    "attn_out": "attention.projection_layer",
    "ls1.weight": "lambda_1",
    "ln2": "layernorm_after",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
    "ls2.weight": "lambda_2",
}
_MODEL = {
    "class_embd": f"{_TOWER}.embeddings.cls_token",
    "patch_embd": f"{_TOWER}.embeddings.patch_embeddings.projection",
    "position_embd.weight": f"{_TOWER}.embeddings.position_embeddings",
    "mm.model.mlp.0": f"{_PROJECTION}.layer_norm",
    "mm.model.mlp.1": f"{_PROJECTION}.linear_1",
    "mm.model.mlp.3": f"{_PROJECTION}.linear_2",
}


def read_internvl(
    metadata: ConfigFields, header: Header, config: ConfigFields, token: int
) -> GridTower:
    """Describes a tower, and checks its tensors; see `read_grid`."""
    file = metadata.source
    vision: dict[str, object] = {
        own: metadata.integer(f"{_VISION}.{name}") for own, name in _SIZES.items()
    }
    layers = metadata.integer(f"{_VISION}.block_count", most=len(header.entries))
    largest = (vision["hidden_size"], layers) == _LARGEST
    values = {
        "image_token_id": token,
        "downsample_ratio": 1 / metadata.integer(f"{_VISION}.projector.scale_factor"),
        "vision_config": {
            **vision,
            "num_hidden_layers": layers,
            "norm_type": "rms_norm" if largest else "layer_norm",
            "layer_norm_eps": metadata.number(f"{_VISION}.attention.layer_norm_epsilon"),
            "attention_bias": "v.blk.0.attn_q.bias" in header.entries,
            "use_qk_norm": "v.blk.0.attn_q_norm.weight" in header.entries,
        },
        "text_config": config.values,
    }
    settings = {
        **INTERNVL_PIXELS,
        "size": dict.fromkeys(("height", "width"), vision["image_size"]),
        **{name: metadata.get(f"{_VISION}.{name}") for name in ("image_mean", "image_std")},
        **{own: metadata.integer(f"{_VISION}.{name}", n) for own, (name, n) in _TILES.items()},
    }
    entries = {name.removeprefix("v."): entry for name, entry in header.entries.items()}
    naming = Naming("clip", layer=_LAYER, layers=f"{_TOWER}.encoder.layer", model=_MODEL)
    tensors = GgufTensors(file, entries, naming, len(entries), {})
    return read_internvl_tower(tensors, ConfigFields(values, file), ConfigFields(settings, file))
