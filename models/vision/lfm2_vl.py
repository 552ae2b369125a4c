"""What makes rows of pictures in LFM2-VL: SigLIP 2 over pictures of any size, or their squares."""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

from edgespec.bundle.pictures import PictureTiles, PixelGrid, Pixels
from edgespec.models.formats.tensors import check_shapes
from edgespec.models.layers.elements import LayerNorm, Linear, Shapes
from edgespec.models.vision.grid import GridTower, LearnedPlaces, Merger
from edgespec.models.vision.tower import MOST_PIXELS, SiglipLayers, colours, heads_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource

LFM2_VL = "lfm2_vl"
"""The name of the whole model."""

_COLOURS, _MOST_PATCH, _MOST_TILES, _MOST_FACTOR, _MOST_ROWS = 3, 64, 64, 8, 1024
_PATCHES, _PROJECTION = (
    ".embeddings.patch_embedding.weight",
    "multi_modal_projector.linear_1.weight",
)
_PROJECTION_EPS = 1e-5
# Default values of transformers.
_SIZES: Mapping[str, object] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "patch_size": 16,
    "num_patches": 256,
}
LFM2_PIXELS: Mapping[str, object] = {
    "downsample_factor": 2,
    "do_resize": False,  # transformers scales whatever it says
    "do_image_splitting": True,
    "min_tiles": 2,
    "max_tiles": 10,
    "use_thumbnail": True,
    "min_image_tokens": 64,
    "max_image_tokens": 256,
    "encoder_patch_size": 16,
    "tile_size": 512,
    "max_pixels_tolerance": 2.0,
    "resample": 2,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "rescale_factor": 1 / 255,
}
"""Default values of transformers, of what becomes of pictures before."""


def read_lfm2_tower(
    source: TensorSource, fields: ConfigFields, settings: ConfigFields
) -> GridTower:
    """Describes what makes rows of pictures, and checks its tensors.

    Args:
        source: The tensors.
        fields: The config of the whole model.
        settings: What becomes of pictures before, with its `LFM2_PIXELS`.

    Raises:
        UnsupportedModelError: It needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    own = fields.group("vision_config").with_defaults(_SIZES)
    remedy = "use a tower as LFM2-VL has it"
    own.only({"hidden_act": (_SIZES["hidden_act"],)}, remedy)
    fields.only(
        {"projector_hidden_act": ("gelu", None), "vision_feature_layer": (-1, None)}, remedy
    )
    text = fields.group("text_config")
    width = own.integer("hidden_size")
    heads = heads_of(own)
    patch = own.integer("patch_size", most=_MOST_PATCH)
    factor = fields.integer("downsample_factor", 2, _MOST_FACTOR)
    for name, has in (("encoder_patch_size", patch), ("downsample_factor", factor)):
        if settings.get(name) != has:
            raise settings.unsupported(name, f"use {has}, as the tower has")
    name = next((n for n in source.names if n.endswith(_PATCHES)), f"vision_tower{_PATCHES}")
    vit = name.removesuffix(_PATCHES)
    layers = SiglipLayers(own, vit)
    tower = GridTower(
        source=source,
        pixels=Pixels(patch * factor, 0, False, *colours(settings)),
        grid=_grid(settings, patch * factor),
        embeddings=_embeddings(source, name, width, patch),
        bias=f"{vit}.embeddings.patch_embedding.bias",
        places=_places(own, f"{vit}.embeddings.position_embedding.weight", width),
        patch=patch,
        heads=heads,
        width=width,
        layers=tuple(map(layers.layer, range(own.integer("num_hidden_layers")))),
        factor=factor,
        merger=_merger(source, fields, width * factor**2, text.integer("hidden_size")),
        token=fields.integer("image_token_id", 396, text.integer("vocab_size") - 1),
        norm=layers.norm("post_layernorm"),
        tiles=_tiles(settings, patch * factor),
    )
    check_shapes(source, tower.tensors())
    return tower


def _grid(settings: ConfigFields, side: int) -> PixelGrid:
    """Reads how many pixels pictures have that are not cut, of rows of so many pixels a side."""
    most = settings.integer("max_image_tokens", most=_MOST_ROWS)
    least = settings.integer("min_image_tokens", most=most)
    return PixelGrid(least * side**2, most * side**2, None, 0)


def _tiles(settings: ConfigFields, side: int) -> PictureTiles:
    """Reads how larger ones are cut."""
    if settings.flag("do_image_splitting") and not settings.flag("use_thumbnail"):
        raise settings.unsupported("use_thumbnail", "use true")
    size = settings.integer("tile_size", most=MOST_PIXELS)
    if size % side:
        raise settings.invalid("tile_size", f"must be a multiple of {side}, the pixels of a row")
    most = settings.integer("max_tiles", most=_MOST_TILES)
    least = settings.integer("min_tiles", most=most)
    if not settings.flag("do_image_splitting"):
        least = most = 1
    larger = settings.number("max_pixels_tolerance")
    around = "<|image_start|>", "<|image_end|>"
    marks = "<|img_row_{row}_col_{column}|>", "<|img_thumbnail|>"
    return PictureTiles(size, least, most, larger, *around, *marks)


def _embeddings(source: TensorSource, name: str, width: int, patch: int) -> Shapes:
    """Returns what makes rows of patches, whose colours lie together except in GGUF files."""
    shape: tuple[int, ...] = (width, patch**2 * _COLOURS)
    if name in source.names and len(source.shape(name)) > len(shape):
        shape = width, _COLOURS, patch, patch
    return {name: shape}


def _places(own: ConfigFields, name: str, width: int) -> LearnedPlaces:
    side = isqrt(count := own.integer("num_patches"))
    if side**2 != count or side > MOST_PIXELS:
        raise own.unsupported("num_patches", "use a square")
    return LearnedPlaces(name, (count, width), side, corners=False)


def _merger(source: TensorSource, fields: ConfigFields, joined: int, hidden: int) -> Merger:
    """Describes the projection."""
    first = next((name for name in source.names if name.endswith(_PROJECTION)), _PROJECTION)
    name = first.removesuffix("linear_1.weight")
    inner = fields.integer("projector_hidden_size", 2560)
    biased = fields.get("projector_bias") is not False
    up, down = (f"{name}linear_{each}" for each in (1, 2))
    norm = None
    if fields.get("projector_use_layernorm") is not False:
        whole = f"{name}layer_norm"
        norm = LayerNorm(f"{whole}.weight", joined, _PROJECTION_EPS, bias=f"{whole}.bias")
    return Merger(
        norm,
        Linear(f"{up}.weight", joined, inner, f"{up}.bias" if biased else None),
        Linear(f"{down}.weight", inner, hidden, f"{down}.bias" if biased else None),
    )
