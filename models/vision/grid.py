"""What makes rows of pictures on a grid of patches, of which each small square becomes a row.

Such towers have Qwen2.5-VL, Qwen3-VL and Qwen3.5 (`models/vision/qwen_vl.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgespec.models.layers.elements import Compound, Linear, Norm, Shapes

if TYPE_CHECKING:
    from edgespec.bundle.pictures import PixelGrid, Pixels
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.vision.tower import TowerLayer


@dataclass(frozen=True)
class Merger(Compound):
    """Makes a row of several patches: `down(gelu(up(rows)))`.

    The norm is of each patch, or of all that are a row side by side.
    """

    norm: Norm
    up: Linear
    down: Linear


@dataclass(frozen=True)
class LearnedPlaces:
    """What is added to rows of patches by their place.

    Attributes:
        name: Name of the [side², width] tensor.
        side: So many places by so many are learned; those of patches lie between.
    """

    name: str
    side: int


@dataclass(frozen=True)
class PatchWindows:
    """Squares of a picture within which alone patches see each other in most layers.

    Attributes:
        side: Rows of a side of a window, each of which is a square of patches.
        whole: Numbers of the layers in which all patches see each other.
    """

    side: int
    whole: tuple[int, ...]


@dataclass(frozen=True)
class GridTower(Compound):
    """What makes rows of pictures of any size (Qwen3-VL: Bai et al., 2025).

    Attributes:
        source: The weights.
        pixels: What becomes of pictures before.
        grid: How many rows they become, and how the text part reads these.
        embeddings: Names and shapes of the tensors that make rows of patches, of one picture of a
            film or of several, all of which are the same one here.
        bias: Name of what is added to these rows; None: nothing is.
        places: What is added by place; None: nothing is.
        patch: Pixels of a side of a patch.
        heads: Number of heads.
        width: Size of a patch's row.
        theta: Base of the rotations of heads, one half by the line and the other by the column.
        layers: The layers.
        windows: Where patches do not see all others; None: they always do.
        factor: So many patches by so many are a row together.
        merger: Makes the rows that are read in place of embeddings.
        deep: Makes further rows, of patches behind layers `behind`, which are added behind the
            first layers of the text part (DeepStack: Meng et al., 2024).
        behind: See above.
        token: Token that stands in texts where a row of a picture is read.
    """

    source: TensorSource
    pixels: Pixels
    grid: PixelGrid
    embeddings: Shapes
    bias: str | None
    places: LearnedPlaces | None
    patch: int
    heads: int
    width: int
    theta: float
    layers: tuple[TowerLayer, ...]
    windows: PatchWindows | None
    factor: int
    merger: Merger
    deep: tuple[Merger, ...]
    behind: tuple[int, ...]
    token: int
    around: ClassVar[None] = None
    together: ClassVar[bool] = False

    @property
    def rows(self) -> int:
        """Least number of rows of a picture."""
        return -(-self.grid.least // self.pixels.size**2)

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        added = dict(self.embeddings)
        if self.bias is not None:
            added[self.bias] = (self.width,)
        if self.places is not None:
            added[self.places.name] = (self.places.side**2, self.width)
        return {**added, **super().tensors()}
