"""The part of Qwen3-VL's and Qwen3.5's checkpoints that reads pictures, of any size.

A picture becomes a grid of patches, and each square of a few of these a row for the text part.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, ClassVar

from edgespec.bundle.pictures import PixelGrid, Pixels
from edgespec.models.formats.safetensors_folder import SafetensorsFolder
from edgespec.models.formats.tensors import check_shapes
from edgespec.models.layers.elements import Compound, LayerNorm, Linear, Shapes
from edgespec.models.vision.gemma4 import PatchTower
from edgespec.models.vision.gemma4_unified import PatchEmbedder
from edgespec.models.vision.tower import Tower, TowerLayer, colours, picture_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource

_log = logging.getLogger(__name__)

SECTIONS = {
    "qwen3_vl": (24, 20, 20), "qwen3_vl_moe": (24, 20, 20),
    "qwen3_5": (11, 11, 10), "qwen3_5_moe": (11, 11, 10),
}  # fmt: skip
"""By the name of the whole model, the usual parts of a head that turn by time, line and column."""

PATCHES = "visual.patch_embed.proj.weight"
"""What the name of the tensor ends with that makes rows of patches."""
_COLOURS, _EPS = 3, 1e-6
_MOST_PATCHES = 4096  # of a picture: published files have 16 times as many, hours of a CPU
_MOST_SIDE, _MOST_PATCH = 4096, 64  # positions and pixels of a side that a file may give

# Default values of transformers.
_SIZES: Mapping[str, object] = {
    "depth": 27, "hidden_size": 1152, "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 4304, "num_heads": 16, "patch_size": 16, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "num_position_embeddings": 2304,
}  # fmt: skip
_DEEP = [8, 16, 24]
_PIXELS: Mapping[str, object] = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}, "resample": 3,
    "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "rescale_factor": 1 / 255,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip


@dataclass(frozen=True)
class Merger(Compound):
    """Makes a row of several patches: `down(gelu(up(rows)))`.

    The norm is of each patch, or of all that are a row side by side.
    """

    norm: LayerNorm
    up: Linear
    down: Linear


@dataclass(frozen=True)
class GridTower(Compound):
    """What makes rows of pictures of any size (Qwen3-VL: Bai et al., 2025).

    Attributes:
        name: What names of its tensors begin with.
        source: The weights.
        pixels: What becomes of pictures before.
        grid: How many rows they become, and how the text part reads these.
        embeddings: Names and shapes of the tensors that make rows of patches, of one picture of a
            film or of several, all of which are the same one here.
        patch: Pixels of a side of a patch.
        side: So many positions by so many are learned; those of patches lie between.
        heads: Number of heads.
        width: Size of a patch's row.
        theta: Base of the rotations of heads, one half by the line and the other by the column.
        layers: The layers.
        factor: So many patches by so many are a row together.
        merger: Makes the rows that are read in place of embeddings.
        deep: Makes further rows, of patches behind layers `behind`, which are added behind the
            first layers of the text part (DeepStack: Meng et al., 2024).
        behind: See above.
        token: Token that stands in texts where a row of a picture is read.
    """

    name: str
    source: TensorSource
    pixels: Pixels
    grid: PixelGrid
    embeddings: Shapes
    patch: int
    side: int
    heads: int
    width: int
    theta: float
    layers: tuple[TowerLayer, ...]
    factor: int
    merger: Merger
    deep: tuple[Merger, ...]
    behind: tuple[int, ...]
    token: int
    around: ClassVar[None] = None
    together: ClassVar[bool] = False

    @property
    def bias(self) -> str:
        """Name of what is added to rows of patches."""
        return f"{self.name}patch_embed.proj.bias"

    @property
    def positions(self) -> str:
        """Name of the rows that are added, by position."""
        return f"{self.name}pos_embed.weight"

    @property
    def rows(self) -> int:
        """Least number of rows of a picture."""
        return -(-self.grid.least // self.pixels.size**2)

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        return {
            **self.embeddings,
            self.bias: (self.width,),
            self.positions: (self.side**2, self.width),
            **super().tensors(),
        }


AnyTower = Tower | PatchTower | PatchEmbedder | GridTower


def read_grid_tower(path: Path, fields: ConfigFields) -> GridTower | None:
    """Reads what makes rows of pictures, and checks its tensors.

    Args:
        path: The checkpoint's folder.
        fields: The config of the whole model.

    Returns:
        None if the model is none of these, or lacks the file that says what becomes of pictures
        before, or has a text part alone; a log says so.

    Raises:
        UnsupportedModelError: It needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in SECTIONS:
        return None
    settings = picture_settings(path, _PIXELS)
    if settings is None:
        return None
    source = SafetensorsFolder(path)
    if not any(name.endswith(PATCHES) for name in source.names):
        _log.warning("%s has no %s, so that it reads texts alone", path, PATCHES)
        return None
    return grid_tower_of(fields, settings, source)


def grid_tower_of(fields: ConfigFields, settings: ConfigFields, source: TensorSource) -> GridTower:
    """Describes what makes rows of pictures, and checks its tensors.

    Args:
        fields: The config of the whole model.
        settings: What becomes of pictures before.
        source: The tensors, among them one whose name ends with `PATCHES`.

    Raises:
        UnsupportedModelError: It needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    kind = str(fields.get("model_type"))
    found = next(name for name in source.names if name.endswith(PATCHES))
    own = fields.group("vision_config").with_defaults(_SIZES)
    text = fields.group("text_config")
    parts = _PartsOf(own, found.removesuffix("patch_embed.proj.weight"), text)
    for name in ("patch_size", "temporal_patch_size", "merge_size"):
        if settings.get(name) != (given := own.get(name.replace("merge", "spatial_merge"))):
            raise settings.unsupported(name, f"use {given}, as the tower has")
    patch = own.integer("patch_size", most=_MOST_PATCH)
    factor = parts.factor
    heads, side = own.integer("num_heads"), isqrt(count := own.integer("num_position_embeddings"))
    if own.get("hidden_act") != _SIZES["hidden_act"]:
        raise own.unsupported("hidden_act", f"use {_SIZES['hidden_act']}")
    if parts.width % heads or parts.width // heads % 4:
        raise own.invalid("num_heads", f"must divide hidden_size={parts.width} by a multiple of 4")
    if side**2 != count or side > _MOST_SIDE:
        raise own.unsupported("num_position_embeddings", "use a square")
    rotations = own.group("rope_parameters")
    if rotations.get("rope_type") not in (None, "default", "axial"):
        raise rotations.unsupported("rope_type", "use axial")
    behind = _behind(own, text) if kind.startswith("qwen3_vl") else ()
    pixels = Pixels(patch * factor, 0, False, *colours(settings))
    least, most = _least_and_most(settings, _MOST_PATCHES * patch**2)
    if pixels.size**2 > most:
        raise own.unsupported("patch_size", f"a row may have {most} pixels, as a picture")
    tower = GridTower(
        parts.name,
        source,
        pixels,
        PixelGrid(least, most, _sections(text, kind), len(behind)),
        _embeddings(source, found, (parts.width, _COLOURS, patch, patch), own),
        patch,
        side,
        heads,
        parts.width,
        rotations.number("rope_theta", 10_000.0),
        tuple(map(parts.layer, range(own.integer("depth")))),
        factor,
        parts.merger("merger", parts.width),
        tuple(
            parts.merger(f"deepstack_merger_list.{each}", parts.width * factor**2)
            for each in range(len(behind))
        ),
        behind,
        fields.integer("image_token_id", most=text.integer("vocab_size", 151_936) - 1),
    )
    check_shapes(source, tower.tensors())
    return tower


def _embeddings(
    source: TensorSource, name: str, shape: tuple[int, int, int, int], own: ConfigFields
) -> Shapes:
    """Returns what makes rows of patches: a tensor, or as in GGUF files one for each picture."""
    frames = own.integer("temporal_patch_size", most=_MOST_SIDE)
    second = f"{name}.1"
    if second in source.names:
        return {name: shape, second: shape}
    return {name: (*shape[:2], frames, *shape[2:])}


class _PartsOf:
    """Describes parts of the tower whose tensors' names begin so."""

    def __init__(self, own: ConfigFields, name: str, text: ConfigFields) -> None:
        self.name = name
        self.width = own.integer("hidden_size")
        self.factor = own.integer("spatial_merge_size", most=_MOST_SIDE)
        self._inner = own.integer("intermediate_size")
        self._out = text.integer("hidden_size")
        if own.integer("out_hidden_size", self._out) != self._out:
            raise own.invalid("out_hidden_size", f"must be {self._out}, as the text part has")

    def layer(self, number: int) -> TowerLayer:
        name = f"blocks.{number}"
        width = self.width
        inner = self._inner
        qkv = self._linear(f"{name}.attn.qkv", width, 3 * width)
        o = self._linear(f"{name}.attn.proj", width, width)
        up = self._linear(f"{name}.mlp.linear_fc1", width, inner)
        down = self._linear(f"{name}.mlp.linear_fc2", inner, width)
        norms = (self._norm(f"{name}.norm{each}", width) for each in (1, 2))
        return TowerLayer(next(norms), (qkv,), o, next(norms), up, down)

    def merger(self, name: str, normalized: int) -> Merger:
        inner = self.width * self.factor**2
        up = self._linear(f"{name}.linear_fc1", inner, inner)
        down = self._linear(f"{name}.linear_fc2", inner, self._out)
        return Merger(self._norm(f"{name}.norm", normalized), up, down)

    def _norm(self, name: str, size: int) -> LayerNorm:
        whole = f"{self.name}{name}"
        return LayerNorm(f"{whole}.weight", size, _EPS, bias=f"{whole}.bias")

    def _linear(self, name: str, columns: int, rows: int) -> Linear:
        whole = f"{self.name}{name}"
        return Linear(f"{whole}.weight", columns, rows, f"{whole}.bias")


def _behind(own: ConfigFields, text: ConfigFields) -> tuple[int, ...]:
    """Reads behind which layers of the tower further rows are made, in ascending order."""
    name = "deepstack_visual_indexes"
    found = _DEEP if own.get(name) is None else own.get(name)
    most = own.integer("depth") - 1
    if not isinstance(found, list) or any(
        not isinstance(each, int) or isinstance(each, bool) or not 0 <= each <= most
        for each in found
    ):
        raise own.invalid(name, f"must be a list of numbers of layers up to {most}")
    if found != sorted(set(found)) or len(found) > text.integer("num_hidden_layers"):
        raise own.unsupported(name, "use ascending numbers, no more than layers of text")
    return tuple(found)


def _least_and_most(settings: ConfigFields, limit: int) -> tuple[int, int]:
    """Reads how many pixels pictures have at least and at most, no more than the limit."""
    sizes = settings.group("size")
    least, most = (
        sizes.integer(name) if settings.get(older) is None else settings.integer(older)
        for name, older in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))
    )
    if least > most:
        raise sizes.invalid("shortest_edge", f"must be {most} or less")
    return min(least, limit), min(most, limit)


def _sections(text: ConfigFields, kind: str) -> tuple[int, int]:
    """Reads how many parts of a head turn by the line and by the column of a row."""
    rotations = text.group("rope_scaling" if text.get("rope_scaling") else "rope_parameters")
    if rotations.get("mrope_interleaved") is False:
        raise rotations.unsupported("mrope_interleaved", "use a checkpoint with parts in turns")
    found = rotations.get("mrope_section")
    if found is None:
        return SECTIONS[kind][1:]
    _, line, column = rotations.numbers("mrope_section", 3)
    return int(line), int(column)
