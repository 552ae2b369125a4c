"""What adapters add to rows: right, and the same whatever adapters other rows have."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from nodes import KERNELS, MISSING, assert_same, by_kernel, run_node, same_bits
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from edgespec.export.formats.tiles import tile_weights, tiles_of_floats

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

ADAPTERS = 3
WIDTH = 96
TOTAL = 120


@dataclass
class Ranges:
    """Matrices of adapters for ranges of columns, and the weights that they stand for.

    Attributes:
        sizes: rank and columns of each range.
        starts: its first column.
        formats: of a and b of each.
    """

    sizes: list[tuple[int, int]]
    starts: list[int]
    formats: list[str]
    tiles: list[np.ndarray] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self):
        rng = np.random.default_rng(5)
        shapes = [(rank, WIDTH, columns, rank) for rank, columns in self.sizes]
        for (rows, width), kind in zip(np.reshape(shapes, (-1, 2)), self.formats, strict=True):
            values = rng.standard_normal((ADAPTERS, rows, width), "f4")
            own = [tiles_of_floats(each, kind) for each in values]
            self.tiles.append(np.stack(own))
            self.weights.append(np.stack([tile_weights(kind, t, rows, width) for t in own]))

    def run(self, y, x, adapters, scales, threads=1):
        inputs = [y, x, adapters, scales, *(tiles.reshape(-1) for tiles in self.tiles)]
        return run_node(
            "LowRank",
            inputs,
            threads=threads,
            adapters=ADAPTERS,
            formats=" ".join(self.formats),
            columns=[number for pair in self.sizes for number in pair],
            starts=self.starts,
        )


ONE = Ranges([(8, TOTAL)], [0], ["f32", "f32"])
SOME = Ranges([(4, 40), (17, 33)], [0, 80], ["bf16", "f32", "f16", "bf16"])
NUMBERS = np.array([[0, -1], [0, -1], [2, 1], [-1, -1], [1, 0], [1, 0], [1, 0]], np.int32)


def call(numbers=NUMBERS):
    rng = np.random.default_rng(9)
    rows = len(numbers)
    y = rng.standard_normal((rows, TOTAL), "f4")
    x = rng.standard_normal((rows, WIDTH), "f4")
    scales = np.where(numbers % 2, np.float32(0.5), np.float32(-2.0))
    return y, x, numbers, scales


@pytest.mark.parametrize("model", [ONE, SOME], ids=["all-columns", "two-ranges"])
def test_rows_have_what_their_adapters_add(model):
    y, x, numbers, scales = call()
    expected = y.astype(np.float64)
    for row, own in enumerate(numbers):
        for number, scale in zip(own, scales[row], strict=True):
            for place, start in enumerate(model.starts):
                if number >= 0:
                    a, b = (each[number] for each in model.weights[2 * place : 2 * place + 2])
                    expected[row, start : start + len(b)] += scale * (b @ (a @ x[row]))
    found = model.run(y, x, numbers, scales, threads=2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    same_bits(found[3], y[3])


@pytest.mark.parametrize("model", [ONE, SOME], ids=["all-columns", "two-ranges"])
def test_a_row_has_the_same_bits_in_any_company(model):
    y, x, numbers, scales = call()
    whole = model.run(y, x, numbers, scales, threads=2)
    for row in range(len(numbers)):
        own = slice(row, row + 1)
        same_bits(model.run(y[own], x[own], numbers[own], scales[own]), whole[own])
        count = int((numbers[row] >= 0).sum())
        alone = model.run(y[own], x[own], numbers[own, :count], scales[own, :count])
        same_bits(alone, whole[own])
    order = np.random.default_rng(3).permutation(len(numbers))
    same_bits(model.run(y[order], x[order], numbers[order], scales[order]), whole[order])


def test_there_may_be_no_rows_and_no_adapters():
    y, x, numbers, scales = call()
    assert SOME.run(y[:0], x[:0], numbers[:0], scales[:0]).shape == (0, TOTAL)
    same_bits(SOME.run(y, x, numbers[:, :0], scales[:, :0]), y)


@pytest.mark.parametrize("number", [-2, ADAPTERS, 1 << 30])
def test_an_adapter_that_there_is_not_is_refused(number):
    y, x, numbers, scales = call(NUMBERS.copy())
    numbers[2, 1] = number
    with pytest.raises(InvalidArgument, match=rf"adapter {number} is not one of 3"):
        ONE.run(y, x, numbers, scales)


def test_shapes_that_do_not_fit_are_refused():
    y, x, numbers, scales = call()
    for wrong in ((y, x[:2]), (y[:, :30], x), (y, x[:, :90])):
        with pytest.raises(InvalidArgument, match=r"instead of|not in y"):
            ONE.run(*wrong, numbers, scales)
    with pytest.raises(InvalidArgument, match="scales"):
        ONE.run(y, x, numbers, scales[:, :1])
    with pytest.raises(InvalidArgument, match="not in y"):
        Ranges([(4, 40)], [TOTAL - 39], ["f32", "f32"]).run(y, x, numbers, scales)
    short = Ranges([(4, 40)], [0], ["f32", "f32"])
    short.tiles[1] = short.tiles[1][:2]
    with pytest.raises(InvalidArgument, match="instead of 3 times"):
        short.run(y, x, numbers, scales)


def computed():
    return {"one": ONE.run(*call(), threads=2), "some": SOME.run(*call())}


@pytest.mark.parametrize("kernel", KERNELS[1:])
def test_instruction_sets_agree(kernel):
    plain = by_kernel("plain", "test_low_rank", "computed")
    assert_same(by_kernel(kernel, "test_low_rank", "computed"), plain)
