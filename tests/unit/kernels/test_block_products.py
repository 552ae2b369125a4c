"""BlockLinear, BlockEmbedding and GatedUnit: numpy's numbers, and the bits of plain C++."""

import numpy as np
import products
import pytest
from nodes import KERNELS, assert_same, by_kernel, needs_library

from edgespec.export.formats.tile_formats import TILE_FORMATS
from edgespec.export.formats.tiles import tile_weights

pytestmark = needs_library
OTHERS = [name for name in KERNELS if name != "plain"]


@pytest.mark.parametrize("format_name", TILE_FORMATS)
def test_plain_products_are_those_of_numpy(format_name):
    found = by_kernel("plain", "products", "outputs")
    for name, (attributes, arrays) in products.cases().items():
        if name.split()[0] != format_name:
            continue
        [columns] = attributes["columns"]
        y = products.product(arrays["x"], format_name, arrays["w0"], columns)
        if "bias" in arrays:
            y = (y + arrays["bias"]) * np.float32(attributes["factor"])
        if "residual" in arrays:
            y = y + arrays["residual"]
        assert_same({"y": found[f"{name} {len(y)} rows"]}, {"y": y})


@pytest.mark.parametrize("format_name", TILE_FORMATS)
def test_products_are_near_those_of_real_numbers(format_name):
    for name, (attributes, arrays) in products.cases().items():
        if name.split()[0] != format_name:
            continue
        x, [columns] = arrays["x"], attributes["columns"]
        weights = tile_weights(format_name, arrays["w0"], columns, x.shape[1]).astype(np.float64)
        if TILE_FORMATS[format_name].unit > 1:
            levels, scales = products.rounded(x)
            x = (levels * scales[..., None].astype(np.float64)).reshape(len(x), -1)
            x = x[:, : weights.shape[1]]
        y = products.product(arrays["x"], format_name, arrays["w0"], columns)
        size = np.abs(x) @ np.abs(weights).T
        assert (np.abs(y - x @ weights.T) <= 3e-6 * size + 1e-30).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_have_the_bits_that_they_have_alone(kernel):
    found = by_kernel(kernel, "products", "outputs")
    for name in products.cases():
        whole = found[f"{name} {products.ROWS[-1]} rows"]
        for rows in products.ROWS:
            assert_same({name: found[f"{name} {rows} rows"]}, {name: whole[:rows]})
        for other in ("alone", "one thread"):
            assert_same({name: found[f"{name} {other}"]}, {name: whole})


@pytest.mark.parametrize("kernel", OTHERS)
@pytest.mark.parametrize("function", ["outputs", "embedded", "gated"])
def test_kernels_give_the_same_bits(kernel, function):
    found = by_kernel(kernel, "products", function)
    assert_same(found, by_kernel("plain", "products", function))


@pytest.mark.parametrize("kernel", KERNELS)
def test_matrices_in_one_call_are_those_of_several(kernel):
    found = by_kernel(kernel, "products", "fused")
    assert_same({"y": found["fused"]}, {"y": found["singles"]})


def test_embedded_rows_are_the_weights():
    found = by_kernel("plain", "products", "embedded")
    for name in found:
        if name.endswith("found"):
            assert_same({name: found[name]}, {name: found[name.replace("found", "wanted")]})


def sigmoid(x):
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


@pytest.mark.parametrize("columns", [1, 35, 64, 3000])
@pytest.mark.parametrize("gate", products.GATES)
def test_gates(gate, columns):
    found = by_kernel("plain", "products", "gated")
    g, up = np.split(products.gate_rows(columns).astype(np.float64), 2, axis=1)
    near = 1e-30 + 1e-37 * np.abs(g * up)  # where exp(-g) would have no float
    if gate == "silu":
        wanted = g * sigmoid(g) * up
    elif gate == "gelu":
        wanted = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * up
        near += 3e-7 * np.abs(g * up)  # a sum of 1 and a tanh near -1 has few bits
    else:
        g = np.minimum(g, 7)
        up = np.clip(up, -7, 7)
        wanted = g * sigmoid(np.float32(1.702) * g) * (up + 1)
        near += 2e-6 * np.abs(g * sigmoid(1.702 * g))  # where up is near -1
    y = found[f"{gate} {columns}"]
    finite = np.isfinite(y)
    assert finite[np.abs(wanted) < 1e38].all()
    relative = 2e-6 + 1e-7 * np.minimum(np.abs(g), 90)  # of exp(-g), whose argument is rounded
    assert (np.abs(y - wanted) <= relative * np.abs(wanted) + near)[finite].all()
    assert_same({"y": y}, {"y": found[f"{gate} {columns} alone"]})
