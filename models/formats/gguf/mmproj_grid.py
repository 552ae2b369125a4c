"""What reads pictures of any size in a GGUF file beside a model's: of Qwen's models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.fields import ConfigFields
from edgespec.models.formats.gguf.names import Naming
from edgespec.models.formats.gguf.tensors import GgufTensors
from edgespec.models.vision.reading import QWEN_TOWERS, read_qwen_tower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.formats.gguf.header import Header
    from edgespec.models.vision.grid import GridTower

WINDOWED = "qwen2.5vl_merger"
"""The type of projection of Qwen2.5-VL."""

GRIDS = (WINDOWED, "qwen3vl_merger")
"""The types of projections, by which llama.cpp tells the towers."""

IMAGE = "<|image_pad|>"
"""The token that stands for a row of a picture."""

_VISION = "clip.vision"
_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_heads": "attention.head_count",
    "patch_size": "patch_size",
    "out_hidden_size": "projection_dim",
}
# Of published models, where the file does not say it.
_FACTOR = 2
_PIXELS = {"image_min_pixels": 256 * 256, "image_max_pixels": 4096 * 4096}
_WINDOW = 112  # pixels of a side, in llama.cpp's code

_TOWER = "model.visual"
_LAYER = {
    "ln1": "norm1",
    "attn_qkv": "attn.qkv",
    "attn_q": "attn.q",
    "attn_k": "attn.k",
    "attn_v": "attn.v",
    "attn_out": "attn.proj",
    "ln2": "norm2",
    "ffn_up": "mlp.linear_fc1",
    "ffn_down": "mlp.linear_fc2",
}
_WINDOWED_LAYER = {
    **_LAYER,
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MODEL = {
    "patch_embd": f"{_TOWER}.patch_embed.proj",
    "patch_embd.weight.1": f"{_TOWER}.patch_embed.proj.weight.1",
    "position_embd": f"{_TOWER}.pos_embed",
    "post_ln": f"{_TOWER}.merger.norm",
    "mm.0": f"{_TOWER}.merger.linear_fc1",
    "mm.2": f"{_TOWER}.merger.linear_fc2",
}
_WINDOWED_MODEL = {
    **_MODEL,
    "post_ln": f"{_TOWER}.merger.ln_q",
    "mm.0": f"{_TOWER}.merger.mlp.0",
    "mm.2": f"{_TOWER}.merger.mlp.2",
}
_MERGER = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}


def read_grid(
    metadata: ConfigFields, header: Header, config: ConfigFields, token: int, *, windowed: bool
) -> GridTower:
    """Describes a tower, and checks its tensors.

    Args:
        metadata: The metadata of its file.
        header: The header of its file.
        config: The model's config, as transformers has it.
        token: The token that stands for a row of a picture.
        windowed: Whether the file is of the type `WINDOWED`.

    Raises:
        UnsupportedModelError: The file is of another model, or needs what is not implemented.
        CheckpointError: It is damaged or inconsistent.
    """
    file = metadata.source
    kind = str(config.get("model_type")).removesuffix("_text")
    if kind not in QWEN_TOWERS or windowed != (kind == "qwen2_5_vl"):
        raise metadata.unsupported("clip.projector_type", f"this is not of a {kind}")
    vision = {own: metadata.integer(f"{_VISION}.{name}") for own, name in _SIZES.items()}
    vision["depth"] = metadata.integer(f"{_VISION}.block_count", most=len(header.entries))
    factor = metadata.integer(f"{_VISION}.spatial_merge_size", _FACTOR)
    further = _windows if windowed else _places
    values = {
        "model_type": kind,
        "image_token_id": token,
        "vision_config": {
            **vision,
            "spatial_merge_size": factor,
            "temporal_patch_size": 2,
            **further(metadata, vision),
        },
        "text_config": config.values,
    }
    least, most = (metadata.integer(f"{_VISION}.{name}", own) for name, own in _PIXELS.items())
    settings = {
        "size": {"shortest_edge": least, "longest_edge": most},
        "resample": 3,
        "rescale_factor": 1 / 255,
        "patch_size": vision["patch_size"],
        "temporal_patch_size": 2,
        "merge_size": factor,
        **{name: metadata.get(f"{_VISION}.{name}") for name in ("image_mean", "image_std")},
    }
    tensors = _source(file, header, windowed, _behind(metadata))
    tower = read_qwen_tower(tensors, ConfigFields(values, file), ConfigFields(settings, file))
    if tower is None:
        raise metadata.invalid("clip.projector_type", "has no tensor v.patch_embd.weight")
    return tower


def _places(metadata: ConfigFields, vision: Mapping[str, int]) -> dict[str, object]:
    """Returns fields of the config of a tower with learned places."""
    side = metadata.integer(f"{_VISION}.image_size") // vision["patch_size"]
    return {"num_position_embeddings": side**2, "deepstack_visual_indexes": _behind(metadata)}


def _windows(metadata: ConfigFields, vision: Mapping[str, int]) -> dict[str, object]:
    """Returns fields of the config of a tower with windows but in every n-th layer."""
    every = metadata.integer(f"{_VISION}.n_wa_pattern")
    return {
        "window_size": metadata.integer(f"{_VISION}.window_size", _WINDOW),
        "fullatt_block_indexes": [*range(every - 1, vision["depth"], every)],
    }


def _behind(metadata: ConfigFields) -> list[int]:
    """Returns the layers behind which further rows are made."""
    name = f"{_VISION}.is_deepstack_layers"
    flags = metadata.get(name) or []
    if not isinstance(flags, list):
        raise metadata.invalid(name, "must be a list of a flag for each layer")
    return [number for number, flag in enumerate(flags) if flag]


def _source(file: str, header: Header, windowed: bool, behind: list[int]) -> GgufTensors:
    """Returns the tensors by their names in transformers."""
    entries = {name.removeprefix("v."): entry for name, entry in header.entries.items()}
    mergers = {
        f"deepstack.{layer}.{name}": f"{_TOWER}.deepstack_merger_list.{number}.{own}"
        for number, layer in enumerate(behind)
        for name, own in _MERGER.items()
    }
    layer, model = (_WINDOWED_LAYER, _WINDOWED_MODEL) if windowed else (_LAYER, _MODEL)
    naming = Naming("clip", layer=layer, layers=f"{_TOWER}.blocks", model=model | mergers)
    return GgufTensors(file, entries, naming, len(entries), {})
