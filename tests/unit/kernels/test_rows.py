"""Functions of rows: right, and the same bits for every instruction set and beside other rows."""

from __future__ import annotations

import numpy as np
import pytest
from nodes import KERNELS, MISSING, assert_same, by_kernel, run_node, same_bits
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

WIDTHS = (1, 2, 15, 16, 33, 576)
OPERATORS = {
    "rms": ("Norm", 1, {"epsilon": 1e-5}),
    "layer": ("Norm", 2, {"epsilon": 1e-5}),
    "moments": ("Moments", 0, {"epsilon": 1e-5}),
    "softmax": ("Softmax", 0, {}),
    "sigmoid": ("Sigmoid", 0, {}),
}
"""By name: the operator, how many vectors it reads besides rows, and its attributes."""


def run(name, x, threads=1):
    operator, count, attributes = OPERATORS[name]
    width = x.shape[-1]
    vectors = np.random.default_rng(width).standard_normal((2, width), "f4")[:count]
    return run_node(operator, [x, *vectors], threads=threads, **attributes), vectors


def wanted(name, x, vectors):
    """The definition, in double precision."""
    x = x.astype(np.float64)
    mean = x.mean(-1, keepdims=True)
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    shares = np.exp(x - x.max(-1, keepdims=True))
    if name == "rms":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * vectors[0]
    if name == "layer":
        return (x - mean) / deviation * vectors[0] + vectors[1]
    return {
        "moments": np.concatenate([mean, deviation], -1),
        "softmax": shares / shares.sum(-1, keepdims=True),
        "sigmoid": 1 / (1 + np.exp(-x)),
    }[name]


def rows(width, count=6):
    return np.random.default_rng(width).standard_normal((count, width), "f4") * 5 + 2


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", OPERATORS)
def test_rows_are_what_their_definition_says(name, width):
    x = rows(width).reshape(2, 3, width)
    found, vectors = run(name, x)
    np.testing.assert_allclose(found, wanted(name, x, vectors), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_row_has_the_same_bits_beside_others(name):
    x = rows(576, 70)
    together, _ = run(name, x, threads=2)
    for row in (0, 7, 69):
        same_bits(run(name, x[row : row + 1])[0][0], together[row])


@pytest.mark.parametrize("name", OPERATORS)
def test_no_rows_give_none(name):
    assert run(name, rows(33, 0))[0].shape == (0, 2 if name == "moments" else 33)


def test_large_scores_overflow_nothing():
    x = np.array([[1e4, 1e4, -1e4], [-3e38, -3e38, -3e38]], np.float32)
    found, _ = run("softmax", x)
    np.testing.assert_allclose(found, [[0.5, 0.5, 0], [1 / 3] * 3], rtol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_instruction_sets_give_the_same_bits(kernel):
    assert_same(by_kernel(kernel, "test_rows", "computed"), computed())


def computed():
    return {f"{name} {width}": run(name, rows(width))[0] for name in OPERATORS for width in WIDTHS}


@pytest.mark.parametrize(
    ("vectors", "told"),
    [([5], "dimension 0 of weight is 5 instead of 6"), ([6, 5], "dimension 0 of bias is 5")],
)
def test_vectors_of_another_width_are_refused(vectors, told):
    x = np.zeros((3, 6), np.float32)
    with pytest.raises(InvalidArgument, match=told):
        run_node("Norm", [x, *(np.ones(size, np.float32) for size in vectors)], epsilon=1e-5)
