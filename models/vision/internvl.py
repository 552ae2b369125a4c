"""What makes rows of pictures in InternVL: a ViT over squares into which a picture is cut."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgespec.bundle.pictures import PictureTiles, Pixels
from edgespec.models.formats.tensors import check_shapes
from edgespec.models.layers.elements import LayerNorm, Linear, Norm
from edgespec.models.vision.grid import GridTower, LearnedPlaces, Merger
from edgespec.models.vision.tower import MOST_PIXELS, TowerLayer, colours, heads_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource

INTERNVL = "internvl"
"""The name of the whole model."""

_COLOURS, _MOST_PATCH, _MOST_TILES = 3, 64, 64
_PATCHES = "vision_tower.embeddings.patch_embeddings.projection.weight"
_PROJECTION_EPS, _HEADS_EPS = 1e-5, 1e-6
# Default values of transformers.
_SIZES: Mapping[str, object] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_act": "gelu",
    "norm_type": "layer_norm",
    "layer_norm_eps": 1e-6,
    "image_size": 448,
    "patch_size": 14,
    "use_mean_pooling": True,
    "use_absolute_position_embeddings": True,
}
INTERNVL_PIXELS: Mapping[str, object] = {
    "size": {"height": 384, "width": 384},
    "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "rescale_factor": 1 / 255,
    "min_patches": 1,
    "max_patches": 12,
}
"""Default values of transformers, of what becomes of pictures before."""


def read_internvl_tower(
    source: TensorSource, fields: ConfigFields, settings: ConfigFields
) -> GridTower:
    """Describes what makes rows of pictures, and checks its tensors.

    Args:
        source: The tensors.
        fields: The config of the whole model.
        settings: What becomes of pictures before, with its `INTERNVL_PIXELS`.

    Raises:
        UnsupportedModelError: It needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    own = fields.group("vision_config").with_defaults(_SIZES)
    own.only(
        {
            "hidden_act": ("gelu",),
            "norm_type": ("layer_norm", "rms_norm"),
            "use_mean_pooling": (True,),
            "use_absolute_position_embeddings": (True,),
        },
        "use a tower as InternVL 3 has it",
    )
    fields.only(
        {
            "projector_hidden_act": ("gelu", None),
            "vision_feature_layer": (-1, None),
            "vision_feature_select_strategy": ("default", None),
        },
        "use a tower as InternVL 3 has it",
    )
    text = fields.group("text_config")
    patch = _side(own, "patch_size", _MOST_PATCH)
    size = _side(own, "image_size", MOST_PIXELS)
    side = size // patch
    factor = _factor(fields, side)
    parts = _PartsOf(own, source)
    tower = GridTower(
        source=source,
        pixels=Pixels(side * patch, 0, False, *colours(settings)),
        grid=None,
        embeddings={parts.patches: (parts.width, _COLOURS, patch, patch)},
        bias=f"{parts.patches.removesuffix('weight')}bias",
        places=parts.places(side),
        patch=patch,
        heads=parts.heads,
        width=parts.width,
        layers=tuple(map(parts.layer, range(own.integer("num_hidden_layers")))),
        factor=factor,
        merger=parts.merger(factor, text.integer("hidden_size")),
        token=fields.integer("image_token_id", 151_667, text.integer("vocab_size") - 1),
        opening=parts.opening(),
        tiles=_tiles(settings, size),
    )
    check_shapes(source, tower.tensors())
    return tower


def _side(own: ConfigFields, name: str, most: int) -> int:
    """Reads the side of a square, which some configs have as height and width."""
    found = own.get(name)
    if isinstance(found, list) and len(found) == 2 and found[0] == found[1]:
        own = own.changed(**{name: found[0]})
    return own.integer(name, most=most)


def _factor(fields: ConfigFields, side: int) -> int:
    """Reads how many patches of a side are a row together."""
    factor = int(1 / fields.number("downsample_ratio", 0.5))
    if not factor or side % factor:
        raise fields.invalid("downsample_ratio", f"must divide the {side} patches of a side")
    return factor


def _tiles(settings: ConfigFields, size: int) -> PictureTiles:
    """Reads how pictures are cut."""
    sizes = settings.group("size")
    for name in ("height", "width"):
        if sizes.integer(name) != size:
            raise sizes.unsupported(name, f"use {size}, as the tower has")
    most = settings.integer("max_patches", most=_MOST_TILES)
    least = settings.integer("min_patches", most=most)
    return PictureTiles(size, least, most, 0.0, "<img>", "</img>", "", "")


class _PartsOf:
    """Describes parts of the tower and of the projection."""

    def __init__(self, own: ConfigFields, source: TensorSource) -> None:
        self._own = own
        self._source = source
        self.patches = next((n for n in source.names if n.endswith(_PATCHES)), f"model.{_PATCHES}")
        whole = self.patches.removesuffix(_PATCHES)
        self._tower = f"{whole}vision_tower"
        self._projection = f"{whole}multi_modal_projector"
        self.width = own.integer("hidden_size")
        self.heads = heads_of(own)
        self._eps = own.number("layer_norm_eps")

    def opening(self) -> tuple[str, tuple[int, ...]]:
        """Returns the row before those of patches."""
        name = f"{self._tower}.embeddings.cls_token"
        return name, self._shape(name, 1)

    def places(self, side: int) -> LearnedPlaces:
        """Returns what is added by place."""
        name = f"{self._tower}.embeddings.position_embeddings"
        return LearnedPlaces(name, self._shape(name, 1 + side**2), side)

    def layer(self, number: int) -> TowerLayer:
        """Returns a layer."""
        own = self._own
        width = self.width
        name = f"{self._tower}.encoder.layer.{number}"
        attention = f"{name}.attention"
        inner = own.integer("intermediate_size")
        biased = own.flag("attention_bias")
        qkv = tuple(_linear(f"{attention}.{each}_proj", width, width, biased) for each in "qkv")
        norms = None
        if own.flag("use_qk_norm"):
            names = (f"{attention}.{each}_norm.weight" for each in "qk")
            first, second = (Norm(each, width, _HEADS_EPS) for each in names)
            norms = first, second
        return TowerLayer(
            norm=self._norm(f"{name}.layernorm_before"),
            qkv=qkv,
            o=_linear(f"{attention}.projection_layer", width, width),
            mlp_norm=self._norm(f"{name}.layernorm_after"),
            up=_linear(f"{name}.mlp.fc1", width, inner),
            down=_linear(f"{name}.mlp.fc2", inner, width),
            activation="gelu",
            heads_norms=norms,
            factors=(f"{name}.lambda_1", f"{name}.lambda_2"),
        )

    def merger(self, factor: int, hidden: int) -> Merger:
        """Returns what makes rows for a text part of this width."""
        joined = self.width * factor**2
        name = f"{self._projection}.layer_norm"
        return Merger(
            LayerNorm(f"{name}.weight", joined, _PROJECTION_EPS, bias=f"{name}.bias"),
            _linear(f"{self._projection}.linear_1", joined, hidden),
            _linear(f"{self._projection}.linear_2", hidden, hidden),
        )

    def _norm(self, name: str) -> Norm:
        if self._own.get("norm_type") == "rms_norm":
            return Norm(f"{name}.weight", self.width, self._eps)
        return LayerNorm(f"{name}.weight", self.width, self._eps, bias=f"{name}.bias")

    def _shape(self, name: str, rows: int) -> tuple[int, ...]:
        """Returns the shape of a tensor of so many rows, which may have a dimension of one."""
        found = self._source.shape(name) if name in self._source.names else ()
        fits = math.prod(found) == rows * self.width
        return found if fits and found[-1] == self.width else (1, rows, self.width)


def _linear(name: str, columns: int, rows: int, biased: bool = True) -> Linear:
    return Linear(f"{name}.weight", columns, rows, f"{name}.bias" if biased else None)
