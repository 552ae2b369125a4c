"""Records of what makes rows of pictures, and the names of its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgespec.system.records import LEFT_OUT

PIXELS, ROWS = "pixels", "rows"
"""Input and output of what makes rows of pictures: a piece, [1, 3, size, size] float32, or with
`Vision.grid` [1, 3, height, width], and its rows, [rows, streams * hidden_size] float32. With
`Vision.patch` N patches instead, [N, patch * patch * 3] float32, those of a row together."""

PLACES = "places"
"""Input beside such patches: where each lies, [N, 2] int64, counted in patches from the left and
from the top."""

PICTURED, PICTURES = "pictured", "pictures"
"""Inputs of a target that reads pictures: which rows of a call read one, [S] bool, and these rows,
[S, streams * hidden_size] float32, see `Vision`, zeros where none is read."""


@dataclass(frozen=True)
class Pixels:
    """What becomes of a picture before it is made rows of.

    Attributes:
        size: pixels of a side of a piece.
        longest: pixels of a picture's longer side, in which it is before it is cut; 0: it becomes a
            piece at once.
        split: whether it is cut into pieces, with the whole picture as the last one; else the whole
            picture is the only piece.
        mean: what is subtracted from each colour, which is between 0 and 1.
        std: what each colour is divided by then.
        resample: Pillow's number of the filter by which pictures are resized.
    """

    size: int
    longest: int
    split: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: int


@dataclass(frozen=True)
class PictureTiles:
    """How pictures are cut into squares, with the whole picture behind them.

    Attributes:
        size: pixels of a side of a square.
        least: number of squares at least, of which as many are made as suit the proportions.
        most: number of squares at most; where one does, it is the whole picture.
        larger: pictures with more than so many times `PixelGrid.most` pixels are cut; 0: all are.
        before: text before a picture.
        behind: text behind it.
        square: text before the rows of a square, in which `{row}` and `{column}` stand for its
            place, counted from 1.
        whole: text before the rows of the whole picture where there are squares.
    """

    size: int
    least: int
    most: int
    larger: float
    before: str
    behind: str
    square: str
    whole: str


@dataclass(frozen=True)
class PixelGrid:
    """How pictures of any size are read: a row for each square of `Pixels.size` pixels.

    Attributes:
        least: pixels of a picture at least; smaller ones are scaled to about so many.
        most: pixels of a picture at most, of which larger ones have about so many then.
        sections: how many pairs of a head's dimensions turn by the line and by the column of a
            row, as far as there are so many: of three neighbours the second and the third. None:
            rows turn by their places in the sequence, as those of text.
        layers: behind so many of the target's first layers further rows are added to the stream.
        in_blocks: whether these pairs are the last ones instead, by the line and then the column.
    """

    least: int
    most: int
    sections: tuple[int, int] | None
    layers: int
    in_blocks: bool = field(default=False, metadata=LEFT_OUT)

    def axes(self, pairs: int) -> list[int]:
        """Returns by what each pair of a head's dimensions turns: time 0, line 1, column 2."""
        if self.sections is None:
            return []
        if self.in_blocks:
            line, column = self.sections
            return [0] * (pairs - line - column) + [1] * line + [2] * column
        axes = [0] * pairs
        for axis, count in enumerate(self.sections, 1):
            for pair in range(axis, min(3 * count, pairs), 3):
                axes[pair] = axis
        return axes


@dataclass(frozen=True)
class Vision(Pixels):
    """What makes rows of pictures, which the target reads in place of embeddings.

    Attributes:
        graph: file of its graph.
        data: file of its weights, in tiles.
        token: token that stands in prompts where such a row is read.
        rows: number of rows of a piece of a picture; with `grid`, at least.
        around: tokens before and behind rows of a picture; these rows see each other. None: each
            sees those before it.
        grid: how pictures of any size are read; None: their pieces are squares.
        patch: pixels of a side of a patch. Then a picture keeps its proportions: its rows have
            `size` pixels a side, and are `rows` at most. 0: it is cut as `Pixels` says.
        causal: whether each row sees those before it alone although there are tokens around.
        tiles: how pictures are cut into squares by their proportions; None: as `Pixels` says.
    """

    graph: str
    data: str
    token: int
    rows: int
    around: tuple[int, int] | None = field(default=None, metadata=LEFT_OUT)
    grid: PixelGrid | None = field(default=None, metadata=LEFT_OUT)
    patch: int = field(default=0, metadata=LEFT_OUT)
    causal: bool = field(default=False, metadata=LEFT_OUT)
    tiles: PictureTiles | None = field(default=None, metadata=LEFT_OUT)

    @property
    def streams(self) -> int:
        """So many rows of [hidden_size] are read for a token of a picture."""
        return 1 if self.grid is None else 1 + self.grid.layers

    @property
    def mark(self) -> int:
        """The token that a chat template writes for a picture."""
        return self.token if self.around is None or self.patch else self.around[0]

    @property
    def together(self) -> bool:
        """Whether rows of a picture see each other, so that one pass reads them."""
        return self.around is not None and not self.causal

    @property
    def patches(self) -> int:
        """The most patches of a picture that keeps its proportions; 0 if it is cut."""
        return self.rows * (self.size // self.patch) ** 2 if self.patch else 0

    @property
    def fewest(self) -> int:
        """The least number of rows of a picture.

        One that keeps its proportions has about `rows`, of which up to half are lost where its
        sides are rounded down.
        """
        return max(self.rows // 2, 1) if self.patch else self.rows
