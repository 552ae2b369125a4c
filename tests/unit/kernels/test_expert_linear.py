"""Products with the experts that rows chose: right, and the same whatever other rows chose."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from nodes import KERNELS, MISSING, assert_same, by_kernel, run_node, same_bits
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from edgespec.export.formats.tiles import tile_weights, tiles_of_floats, tiles_of_levels

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

EXPERTS = 6
TOP = 3
WIDTH = 96


@dataclass
class Experts:
    """Matrices of experts: tiles, and the weights that they stand for, [E, columns, WIDTH]."""

    columns: list[int]
    formats: list[str]
    seed: int = 0
    tiles: list[np.ndarray] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        for columns, name in zip(self.columns, self.formats, strict=True):
            own = []
            for _ in range(EXPERTS):
                if name == "f32":
                    own.append(tiles_of_floats(rng.standard_normal((columns, WIDTH), "f4"), name))
                    continue
                bits = int(name[1])
                levels = rng.integers(0, 1 << bits, (columns, WIDTH), np.uint8)
                scales = rng.random((columns, WIDTH // 32)).astype(np.float16)
                own.append(tiles_of_levels(levels, scales, None, bits, 32)[1])
            self.tiles.append(np.stack(own))
            self.weights.append(np.stack([tile_weights(name, t, columns, WIDTH) for t in own]))

    def run(self, x, experts, bias=None, shares=None, threads=1):
        inputs = [x, experts, bias, shares, *(tiles.reshape(-1) for tiles in self.tiles)]
        return run_node(
            "ExpertLinear",
            inputs,
            threads=threads,
            experts=EXPERTS,
            formats=" ".join(self.formats),
            columns=self.columns,
        )


TWO = Experts([40, 24], ["q4_0", "q8_0"])
FLOATS = Experts([33], ["f32"], seed=1)


def rounded(x):
    """Rows as products of integers see them: in 8 bits by blocks of 32."""
    blocks = x.reshape(len(x), -1, 32)
    scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    return (np.round(blocks / scales) * scales).reshape(x.shape)


def call(rows, seed=0, each=False):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows * (TOP if each else 1), WIDTH), "f4")
    experts = np.stack([rng.permutation(EXPERTS)[:TOP] for _ in range(rows)]).astype(np.int64)
    return x, experts, rng.random((rows, TOP), np.float32)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("model", [TWO, FLOATS], ids=["integers", "floats"])
def test_products_are_those_of_chosen_experts(model, each):
    x, experts, shares = call(11, each=each)
    bias = np.random.default_rng(2).standard_normal((EXPERTS, sum(model.columns)), "f4")
    read = (x if model is FLOATS else rounded(x)).astype(np.float64)
    read = read.reshape(11, -1, WIDTH)
    weights = np.concatenate(model.weights, axis=1)[experts].astype(np.float64)
    expected = (weights @ np.broadcast_to(read, (11, TOP, WIDTH))[..., None])[..., 0]
    expected += bias[experts]
    found = model.run(x, experts, bias)
    np.testing.assert_allclose(found, expected.reshape(33, -1), rtol=1e-4, atol=1e-3)
    found = model.run(x, experts.astype(np.int32), bias, shares)
    expected = (expected * shares[..., None]).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("model", [TWO, FLOATS], ids=["integers", "floats"])
def test_a_row_has_the_same_bits_in_any_company(model):
    x, experts, shares = call(23)
    whole = model.run(x, experts, None, shares, threads=2)
    apart = model.run(x, experts).reshape(23, TOP, -1)
    for row in range(23):
        own = slice(row, row + 1)
        same_bits(model.run(x[own], experts[own], None, shares[own]), whole[own])
        same_bits(model.run(x[own], experts[own]), apart[row])
    order = np.random.default_rng(3).permutation(23)
    same_bits(model.run(x[order], experts[order], None, shares[order]), whole[order])


def test_all_rows_may_choose_one_expert_and_there_may_be_no_rows():
    x, experts, _ = call(9)
    experts[:] = 5
    found = FLOATS.run(x, experts).reshape(9, TOP, -1)
    same_bits(found[:, 0], found[:, 2])
    assert FLOATS.run(x[:0], experts[:0]).shape == (0, 33)


@pytest.mark.parametrize("expert", [-1, EXPERTS, 1 << 40])
def test_an_expert_that_there_is_not_is_refused(expert):
    x, experts, _ = call(2)
    experts[1, 2] = expert
    with pytest.raises(InvalidArgument, match=rf"expert {expert} is not one of 6"):
        FLOATS.run(x, experts)


def test_shapes_that_do_not_fit_are_refused():
    x, experts, shares = call(3)
    with pytest.raises(InvalidArgument, match="x has 2 rows for 3 rows of 3 experts"):
        FLOATS.run(x[:2], experts)
    with pytest.raises(InvalidArgument, match="shares"):
        FLOATS.run(x, experts, None, shares[:2])
    with pytest.raises(InvalidArgument, match="bias"):
        FLOATS.run(x, experts, np.zeros((EXPERTS, 32), np.float32))
    short = Experts([33], ["f32"])
    short.tiles[0] = short.tiles[0][:5]
    with pytest.raises(InvalidArgument, match="instead of 6 times"):
        short.run(x, experts)


def computed():
    x, experts, shares = call(13)
    return {
        "integers": TWO.run(x, experts, None, shares, threads=2),
        "floats": FLOATS.run(x, experts),
    }


@pytest.mark.parametrize("kernel", KERNELS[1:])
def test_instruction_sets_agree(kernel):
    plain = by_kernel("plain", "test_expert_linear", "computed")
    assert_same(by_kernel(kernel, "test_expert_linear", "computed"), plain)
