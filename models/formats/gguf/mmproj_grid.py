"""What reads pictures of any size in a GGUF file beside a model's: of Qwen3-VL and Qwen3.5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.fields import ConfigFields
from edgespec.models.formats.gguf.names import Naming
from edgespec.models.formats.gguf.tensors import GgufTensors
from edgespec.models.vision.grid import PATCHES, SECTIONS, grid_tower_of

if TYPE_CHECKING:
    from edgespec.models.formats.gguf.header import Header
    from edgespec.models.vision.grid import GridTower

GRID = "qwen3vl_merger"
"""The type of projection."""

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

_TOWER = "model.visual"
_LAYER = {
    "ln1": "norm1",
    "attn_qkv": "attn.qkv",
    "attn_out": "attn.proj",
    "ln2": "norm2",
    "ffn_up": "mlp.linear_fc1",
    "ffn_down": "mlp.linear_fc2",
}
_MODEL = {
    "patch_embd": f"{_TOWER}.patch_embed.proj",
    "patch_embd.weight.1": f"{_TOWER}.patch_embed.proj.weight.1",
    "position_embd": f"{_TOWER}.pos_embed",
    "post_ln": f"{_TOWER}.merger.norm",
    "mm.0": f"{_TOWER}.merger.linear_fc1",
    "mm.2": f"{_TOWER}.merger.linear_fc2",
}
_MERGER = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}


def read_grid(
    metadata: ConfigFields, header: Header, config: ConfigFields, token: int
) -> GridTower:
    """Describes a tower, and checks its tensors.

    Args:
        metadata: The metadata of its file.
        header: The header of its file.
        config: The model's config, as transformers has it.
        token: The token that stands for a row of a picture.

    Raises:
        UnsupportedModelError: The file is of another model, or needs what is not implemented.
        CheckpointError: It is damaged or inconsistent.
    """
    file = metadata.source
    kind = str(config.get("model_type")).removesuffix("_text")
    if kind not in SECTIONS:
        raise metadata.unsupported("clip.projector_type", f"this is not of a {kind}")
    vision = {own: metadata.integer(f"{_VISION}.{name}") for own, name in _SIZES.items()}
    vision["depth"] = metadata.integer(f"{_VISION}.block_count", most=len(header.entries))
    factor = metadata.integer(f"{_VISION}.spatial_merge_size", _FACTOR)
    side = metadata.integer(f"{_VISION}.image_size") // vision["patch_size"]
    behind = _behind(metadata)
    values = {
        "model_type": kind,
        "image_token_id": token,
        "vision_config": {
            **vision,
            "spatial_merge_size": factor,
            "temporal_patch_size": 2,
            "num_position_embeddings": side**2,
            "deepstack_visual_indexes": behind,
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
    tensors = _source(file, header, behind)
    if not any(name.endswith(PATCHES) for name in tensors.names):
        raise metadata.invalid("clip.projector_type", "has no tensor v.patch_embd.weight")
    return grid_tower_of(ConfigFields(values, file), ConfigFields(settings, file), tensors)


def _behind(metadata: ConfigFields) -> list[int]:
    """Returns the layers behind which further rows are made."""
    name = f"{_VISION}.is_deepstack_layers"
    flags = metadata.get(name) or []
    if not isinstance(flags, list):
        raise metadata.invalid(name, "must be a list of a flag for each layer")
    return [number for number, flag in enumerate(flags) if flag]


def _source(file: str, header: Header, behind: list[int]) -> GgufTensors:
    """Returns the tensors by their names in transformers."""
    entries = {name.removeprefix("v."): entry for name, entry in header.entries.items()}
    mergers = {
        f"deepstack.{layer}.{name}": f"{_TOWER}.deepstack_merger_list.{number}.{own}"
        for number, layer in enumerate(behind)
        for name, own in _MERGER.items()
    }
    naming = Naming("clip", layer=_LAYER, layers=f"{_TOWER}.blocks", model=_MODEL | mergers)
    return GgufTensors(file, entries, naming, len(entries), {})
