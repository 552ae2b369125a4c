"""TreeAttention: near float64, and a row's bits are those that it has alone."""

import os

import numpy as np
import pytest
import tree_attention
from nodes import KERNELS, assert_same, by_kernel, needs_library

pytestmark = needs_library
SEED = "5"
CALLS = os.environ.get("EDGESPEC_TEST_CALLS", "300")


@pytest.mark.parametrize("cache", tree_attention.CACHES)
@pytest.mark.parametrize("layer", tree_attention.LAYERS)
def test_attention_is_near_that_of_real_numbers(layer, cache):
    found = by_kernel("plain", "tree_attention", "reference", SEED)
    y = found[f"{layer} {cache} y"]
    wanted = found[f"{layer} {cache} wanted"]
    assert np.abs(y - wanted).max() <= 3e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("cache", tree_attention.CACHES)
@pytest.mark.parametrize("layer", tree_attention.LAYERS)
def test_new_rows_are_written_and_no_others(layer, cache):
    found = by_kernel("plain", "tree_attention", "reference", SEED)
    key = f"{layer} {cache}"
    assert found[f"{key} kept"]
    if tree_attention.LAYERS[layer].source != "other":
        rows = found[f"{key} rows"]
        wanted = found[f"{key} wanted rows"]
        largest = np.abs(wanted).max(-1, keepdims=True)
        # Half of the last step of each type, and what float32 adds.
        step = {"fp32": 0, "fp16": np.abs(wanted) * 2**-11 + 2**-25, "int8": largest / 254}[cache]
        assert (np.abs(rows - wanted) <= step + 2e-6 * largest).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_have_the_bits_that_they_have_alone(kernel):
    found = by_kernel(kernel, "tree_attention", "in_company", SEED, CALLS)
    assert_same({"y": found["together"]}, {"y": found["alone"]})
    assert_same({"y": found["together"]}, {"y": found["chunks"]})


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "plain"])
@pytest.mark.parametrize(
    ("function", "arguments"), [("reference", [SEED]), ("in_company", [SEED, CALLS])]
)
def test_kernels_give_the_same_bits(kernel, function, arguments):
    found = by_kernel(kernel, "tree_attention", function, *arguments)
    assert_same(found, by_kernel("plain", "tree_attention", function, *arguments))
