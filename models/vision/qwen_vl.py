"""What makes rows of pictures in Qwen3-VL and Qwen3.5."""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, ClassVar

from edgespec.bundle.pictures import PixelGrid, Pixels
from edgespec.models.layers.elements import LayerNorm, Linear, Norm, Shapes
from edgespec.models.vision.grid import GridTower, LearnedPlaces, Merger, PatchWindows
from edgespec.models.vision.text_part import text_group
from edgespec.models.vision.tower import TowerLayer, colours

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource

PATCHES = "visual.patch_embed.proj.weight"
"""What the name of the tensor ends with that makes rows of patches."""
_COLOURS, EPS = 3, 1e-6
_MOST_PATCHES = 4096  # of a picture: published files have 16 times as many, hours of a CPU
MOST_SIDE, _MOST_PATCH = 4096, 64  # positions and pixels of a side that a file may give

_DEEP = [8, 16, 24]


class Qwen3VlTower:
    """Describes the tower of Qwen3-VL.

    Args:
        fields: The config of the whole model.
        settings: What becomes of pictures before.
        source: The tensors.
    """

    activation = "gelu_pytorch_tanh"
    sections = (24, 20, 20)
    """The usual parts of a head of the text part that turn by time, line and column."""
    in_blocks = False
    """Whether these parts lie one behind the other, and do not take turns."""
    sizes: ClassVar[Mapping[str, object]] = {
        "depth": 27,
        "hidden_size": 1152,
        "hidden_act": activation,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 2304,
    }
    """Default values of transformers."""

    def __init__(self, fields: ConfigFields, settings: ConfigFields, source: TensorSource) -> None:
        self.own = fields.group("vision_config").with_defaults(self.sizes)
        self.text = text_group(fields)
        self.width = self.own.integer("hidden_size")
        self.factor = self.own.integer("spatial_merge_size", most=MOST_SIDE)
        self._fields = fields
        self._settings = settings
        self._source = source
        self._patches = next(name for name in source.names if name.endswith(PATCHES))
        self.name = self._patches.removesuffix("patch_embed.proj.weight")
        self.inner = self.own.integer("intermediate_size")
        self._out = self.text.integer("hidden_size")

    def tower(self) -> GridTower:
        """Returns the description."""
        own = self.own
        self._check()
        patch = own.integer("patch_size", most=_MOST_PATCH)
        heads = own.integer("num_heads")
        if self.width % heads or self.width // heads % 4:
            raise own.invalid(
                "num_heads", f"must divide hidden_size={self.width} by a multiple of 4"
            )
        rotations = own.group("rope_parameters")
        if rotations.get("rope_type") not in (None, "default", "axial"):
            raise rotations.unsupported("rope_type", "use axial")
        behind = self.behind()
        pixels = Pixels(patch * self.factor, 0, False, *colours(self._settings))
        layers = range(own.integer("depth"))
        return GridTower(
            source=self._source,
            pixels=pixels,
            grid=self._grid(patch, len(behind)),
            embeddings=self._embeddings(patch),
            bias=self.bias(),
            places=self.places(),
            patch=patch,
            heads=heads,
            width=self.width,
            theta=rotations.number("rope_theta", 10_000.0),
            layers=tuple(map(self.layer, layers)),
            windows=self.windows(patch),
            factor=self.factor,
            merger=self.merger(),
            deep=tuple(map(self.deep, range(len(behind)))),
            behind=behind,
            token=self._fields.integer(
                "image_token_id", most=self.text.integer("vocab_size", 151_936) - 1
            ),
        )

    def bias(self) -> str | None:
        """Returns the name of what is added to rows of patches."""
        return f"{self.name}patch_embed.proj.bias"

    def places(self) -> LearnedPlaces | None:
        """Returns what is added to them by place."""
        side = isqrt(count := self.own.integer("num_position_embeddings"))
        if side**2 != count or side > MOST_SIDE:
            raise self.own.unsupported("num_position_embeddings", "use a square")
        return LearnedPlaces(f"{self.name}pos_embed.weight", (count, self.width), side)

    def windows(self, patch: int) -> PatchWindows | None:
        """Returns where patches of so many pixels a side do not see all others."""
        return None

    def layer(self, number: int) -> TowerLayer:
        """Returns a layer."""
        name = f"blocks.{number}"
        up = self.linear(f"{name}.mlp.linear_fc1", self.width, self.inner)
        down = self.linear(f"{name}.mlp.linear_fc2", self.inner, self.width)
        return self.attending(name, up, down)

    def attending(self, name: str, up: Linear, down: Linear) -> TowerLayer:
        """Returns a layer of that name with these matrices behind its attention."""
        width = self.width
        first, second = (self.norm(f"{name}.norm{each}", width) for each in (1, 2))
        whole = f"{name}.attn.qkv"
        parts: tuple[Linear, ...] = (self.linear(whole, width, 3 * width),)
        if parts[0].weight not in self._source.names:  # as in GGUF files of some
            parts = tuple(self.linear(f"{name}.attn.{each}", width, width) for each in "qkv")
        return TowerLayer(
            first, parts, self.linear(f"{name}.attn.proj", width, width), second, up, down
        )

    def merger(self) -> Merger:
        """Returns what makes rows of patches behind the last layer."""
        norm = self.norm("merger.norm", self.width)
        return self.merging("merger", norm, "linear_fc1", "linear_fc2")

    def deep(self, number: int) -> Merger:
        """Returns what makes further rows, of patches behind one of the layers `behind`."""
        name = f"deepstack_merger_list.{number}"
        norm = self.norm(f"{name}.norm", self.width * self.factor**2)
        return self.merging(name, norm, "linear_fc1", "linear_fc2")

    def merging(self, name: str, norm: Norm, up: str, down: str) -> Merger:
        """Returns what makes rows of patches, by the names of its two matrices."""
        inner = self.width * self.factor**2
        return Merger(
            norm,
            self.linear(f"{name}.{up}", inner, inner),
            self.linear(f"{name}.{down}", inner, self._out),
        )

    def behind(self) -> tuple[int, ...]:
        """Reads behind which layers further rows are made, in ascending order."""
        name = "deepstack_visual_indexes"
        found = layer_numbers(self.own, name, _DEEP)
        if len(found) > self.text.integer("num_hidden_layers"):
            raise self.own.unsupported(name, "use no more than layers of text")
        return found

    def norm(self, name: str, size: int) -> Norm:
        """Returns a norm."""
        whole = f"{self.name}{name}"
        return LayerNorm(f"{whole}.weight", size, EPS, bias=f"{whole}.bias")

    def linear(self, name: str, columns: int, rows: int) -> Linear:
        """Returns a matrix."""
        whole = f"{self.name}{name}"
        return Linear(f"{whole}.weight", columns, rows, f"{whole}.bias")

    def _check(self) -> None:
        """Refuses what contradicts itself, or is not implemented."""
        own = self.own
        for name in ("patch_size", "temporal_patch_size", "merge_size"):
            if self._settings.get(name) != (
                given := own.get(name.replace("merge", "spatial_merge"))
            ):
                raise self._settings.unsupported(name, f"use {given}, as the tower has")
        if own.get("hidden_act") != self.activation:
            raise own.unsupported("hidden_act", f"use {self.activation}")
        if own.integer("out_hidden_size", self._out) != self._out:
            raise own.invalid("out_hidden_size", f"must be {self._out}, as the text part has")

    def _embeddings(self, patch: int) -> Shapes:
        """Returns what makes rows of patches: a tensor, or as in GGUF files one a picture."""
        shape = self.width, _COLOURS, patch, patch
        frames = self.own.integer("temporal_patch_size", most=MOST_SIDE)
        second = f"{self._patches}.1"
        if second in self._source.names:
            return {self._patches: shape, second: shape}
        return {self._patches: (*shape[:2], frames, *shape[2:])}

    def _grid(self, patch: int, deep: int) -> PixelGrid:
        """Reads how many pixels pictures have, and how the text part reads their rows."""
        sizes = self._settings.group("size")
        least, most = (
            sizes.integer(name)
            if self._settings.get(older) is None
            else self._settings.integer(older)
            for name, older in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))
        )
        if least > most:
            raise sizes.invalid("shortest_edge", f"must be {most} or less")
        limit = _MOST_PATCHES * patch**2
        least, most = (min(each, limit) for each in (least, most))
        if (patch * self.factor) ** 2 > most:
            raise self.own.unsupported("patch_size", f"a row may have {most} pixels, as a picture")
        return PixelGrid(least, most, self._sections(), deep, self.in_blocks)

    def _sections(self) -> tuple[int, int]:
        """Reads how many parts of a head turn by the line and by the column of a row."""
        text = self.text
        rotations = text.group("rope_scaling" if text.get("rope_scaling") else "rope_parameters")
        if rotations.get("mrope_interleaved") not in (None, not self.in_blocks):
            order = "one behind the other" if self.in_blocks else "in turns"
            raise rotations.unsupported("mrope_interleaved", f"use a checkpoint with parts {order}")
        found = self.sections
        if rotations.get("mrope_section") is not None:
            time, line, column = map(int, rotations.numbers("mrope_section", 3))
            found = time, line, column
        if self.in_blocks and sum(found) != (pairs := self._pairs()):
            raise rotations.invalid("mrope_section", f"must add up to {pairs}, half of a head")
        return found[1], found[2]

    def _pairs(self) -> int:
        """Returns how many pairs of dimensions turn in a head of the text part."""
        width = self.text.integer("hidden_size") // self.text.integer("num_attention_heads")
        return self.text.integer("head_dim", width) // 2


class Qwen35Tower(Qwen3VlTower):
    """Describes the tower of Qwen3.5, which makes no further rows."""

    sections = (11, 11, 10)

    def behind(self) -> tuple[int, ...]:
        """Returns no layers."""
        return ()


def layer_numbers(own: ConfigFields, name: str, usual: list[int]) -> tuple[int, ...]:
    """Reads a list of numbers of layers, in ascending order.

    Args:
        own: The config of the tower.
        name: The field.
        usual: Its value if it is absent.

    Raises:
        UnsupportedModelError, CheckpointError: It is something else.
    """
    found = usual if own.get(name) is None else own.get(name)
    most = own.integer("depth") - 1
    if not isinstance(found, list) or any(
        not isinstance(each, int) or isinstance(each, bool) or not 0 <= each <= most
        for each in found
    ):
        raise own.invalid(name, f"must be a list of numbers of layers up to {most}")
    if found != sorted(set(found)):
        raise own.unsupported(name, "use ascending numbers")
    return tuple(found)
