"""What makes rows of pictures on a grid of patches, of which each small square becomes a row.

Such towers have Qwen2.5-VL, Qwen3-VL and Qwen3.5 (`models/vision/qwen_vl.py`), InternVL
(`models/vision/internvl.py`) and LFM2-VL (`models/vision/lfm2_vl.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgespec.models.layers.elements import Compound, Linear, Norm, Shapes

if TYPE_CHECKING:
    from edgespec.bundle.pictures import PictureTiles, PixelGrid, Pixels
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.vision.tower import TowerLayer


@dataclass(frozen=True)
class Merger(Compound):
    """Makes a row of several patches: `down(gelu(up(rows)))`.

    The norm is of each patch, or of all that are a row side by side; None: there is none.
    """

    norm: Norm | None
    up: Linear
    down: Linear


@dataclass(frozen=True)
class LearnedPlaces:
    """What is added to rows of patches by their place.

    Attributes:
        name: Name of the tensor.
        shape: Its shape; it has [side², width] numbers, or [1 + side², width] with an opening row.
        side: So many places by so many are learned; those of patches lie between.
        corners: Whether the outermost ones are those of the outermost patches. Else each stands for
            a part of the picture, and several become one where patches are fewer.
    """

    name: str
    shape: tuple[int, ...]
    side: int
    corners: bool = True


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
    """What makes rows of pictures, or of their pieces, of any size (Qwen3-VL: Bai et al., 2025).

    Attributes:
        source: The weights.
        pixels: What becomes of pictures before.
        grid: How many rows they become, and how the text part reads these; None: all pieces have
            the size of `pixels`.
        embeddings: Names and shapes of the tensors that make rows of patches, of one picture of a
            film or of several, all of which are the same one here.
        bias: Name of what is added to these rows; None: nothing is.
        places: What is added by place; None: nothing is.
        patch: Pixels of a side of a patch.
        heads: Number of heads.
        width: Size of a patch's row.
        layers: The layers.
        factor: So many patches by so many are a row together.
        merger: Makes the rows that are read in place of embeddings.
        token: Token that stands in texts where a row of a picture is read.
        theta: Base of the rotations of heads, one half by the line and the other by the column;
            None: nothing is rotated.
        opening: Name and shape of a row before those of patches, which goes no further than the
            layers; None: there is none.
        windows: Where patches do not see all others; None: they always do.
        norm: Behind the last layer; None: there is none.
        deep: Makes further rows, of patches behind layers `behind`, which are added behind the
            first layers of the text part (DeepStack: Meng et al., 2024).
        behind: See above.
        tiles: How pictures are cut; None: they are not.
    """

    source: TensorSource
    pixels: Pixels
    grid: PixelGrid | None
    embeddings: Shapes
    bias: str | None
    places: LearnedPlaces | None
    patch: int
    heads: int
    width: int
    layers: tuple[TowerLayer, ...]
    factor: int
    merger: Merger
    token: int
    theta: float | None = None
    opening: tuple[str, tuple[int, ...]] | None = None
    windows: PatchWindows | None = None
    norm: Norm | None = None
    deep: tuple[Merger, ...] = ()
    behind: tuple[int, ...] = ()
    tiles: PictureTiles | None = None
    around: ClassVar[None] = None
    together: ClassVar[bool] = False

    @property
    def rows(self) -> int:
        """Number of rows of a piece; of pictures of any size, the least."""
        square = self.pixels.size**2
        if self.grid is not None:
            return -(-self.grid.least // square)
        return square // (self.patch * self.factor) ** 2

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        added = dict(self.embeddings)
        if self.bias is not None:
            added[self.bias] = (self.width,)
        if self.places is not None:
            added[self.places.name] = self.places.shape
        return {**added, **dict([self.opening] if self.opening else []), **super().tensors()}
