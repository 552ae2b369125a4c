"""Block quantization: its bytes, its error, and that no block is worse than naive rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgespec.export.formats.blocks import dequantize_rows, quantize_rows

bit_widths = pytest.mark.parametrize("bits", [4, 7, 8])


def gaussian(rows=64, width=256):
    return np.random.default_rng(0).standard_normal((rows, width), dtype=np.float32)


def heavy_tailed():
    return np.random.default_rng(1).standard_t(3, (64, 256)).astype(np.float32)


def with_outliers():
    weights = gaussian()
    weights[:, ::64] *= 8
    return weights


def restored(weights, bits, block_size):
    found = dequantize_rows(quantize_rows(weights, bits, block_size), bits)
    return found[:, : weights.shape[1]]


def by_maximum(weights, bits, block_size):
    """The usual way: each block's largest magnitude at the end of the signed range."""
    blocks = weights.reshape(-1, block_size).astype(np.float64)
    end = 2 ** (bits - 1) - 1
    scales = np.abs(blocks).max(axis=1, keepdims=True) / end
    levels = np.rint(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0))
    return (levels * scales).reshape(weights.shape)


def squared_error(found, weights):
    return np.square(found.astype(np.float64) - weights).sum()


# Layout


def test_low_nibble_comes_first_around_a_zero_point_of_eight():
    levels = np.array([-8, -7, -1, 0, 1, 6, 7, 3] * 4, np.float32)
    found = quantize_rows(levels[None] / 16, 4, 32)
    # -8 and -7 are stored as 0 and 1, and so on.
    np.testing.assert_array_equal(found.packed, [[[0x10, 0x87, 0xE9, 0xBF] * 4]])
    assert found.packed.dtype == np.uint8
    np.testing.assert_array_equal(found.scales, np.array([[1 / 16]], np.float32))


def test_bytes_around_a_zero_point_of_128():
    levels = np.array([-127, -1, 0, 126] * 8, np.float32)
    found = quantize_rows(levels[None], 8, 32)
    np.testing.assert_array_equal(found.packed, [[[1, 127, 128, 254] * 8]])
    np.testing.assert_array_equal(found.scales, [[1.0]])


@bit_widths
@pytest.mark.parametrize(("width", "block_size"), [(64, 32), (96, 64), (5, 32), (129, 128)])
def test_rows_and_blocks_are_independent_and_padding_is_zero(bits, width, block_size):
    weights = gaussian(7, width)
    found = quantize_rows(weights, bits, block_size)
    blocks = -(-width // block_size)
    assert found.packed.shape == (7, blocks, block_size // 2 if bits == 4 else block_size)
    assert found.scales.shape == (7, blocks)
    whole = dequantize_rows(found, bits)
    assert not whole[:, width:].any()
    for row in range(7):
        for start in range(0, width, block_size):
            block = weights[row : row + 1, start : start + block_size]
            alone = restored(block, bits, block_size)
            np.testing.assert_array_equal(whole[row, start : start + block.shape[1]], alone[0])


# Error


@bit_widths
@pytest.mark.parametrize("block_size", [32, 64, 128])
@pytest.mark.parametrize("weights", [gaussian(), heavy_tailed(), with_outliers(), gaussian(9, 100)])
def test_the_reported_error_is_the_actual_one(bits, block_size, weights):
    found = quantize_rows(weights, bits, block_size)
    actual = squared_error(restored(weights, bits, block_size), weights)
    assert found.squared_error == pytest.approx(actual, rel=1e-3)
    assert found.squared_norm == pytest.approx(np.square(weights, dtype=np.float64).sum(), rel=1e-6)


@pytest.mark.parametrize("block_size", [32, 64, 128])
@pytest.mark.parametrize("weights", [gaussian(), heavy_tailed(), with_outliers()])
def test_int4_is_well_below_the_error_of_the_maximum(block_size, weights):
    found = squared_error(restored(weights, 4, block_size), weights)
    naive = squared_error(by_maximum(weights, 4, block_size), weights)
    assert found < 0.85 * naive


@bit_widths
def test_no_other_scale_is_better_for_the_chosen_integers(bits):
    weights = gaussian(8, 64)
    rows = quantize_rows(weights, bits, 32)
    values = dequantize_rows(rows, bits).reshape(-1, 32).astype(np.float64)
    blocks = weights.reshape(-1, 32)
    best = (values * blocks).sum(axis=1) / np.square(values).sum(axis=1)
    np.testing.assert_allclose(best, 1, atol=2**-11)  # the scale's own rounding


@bit_widths
def test_a_weight_is_off_by_half_a_step_unless_it_is_clipped(bits):
    weights = gaussian(32, 64)
    rows = quantize_rows(weights, bits, 32)
    off = np.abs(dequantize_rows(rows, bits) - weights).reshape(-1, 32)
    # Levels were rounded under the trial's scale, which least squares then moves a little.
    steps = np.abs(rows.scales).reshape(-1, 1)
    inside = np.abs(weights.reshape(-1, 32)) < steps * (2 ** (bits - 1) - 1.5)
    assert inside.mean() > 0.9
    assert (off <= 0.65 * steps)[inside].all()


# Scales in half precision


@bit_widths
def test_integers_fit_the_scale_that_is_stored(bits):
    """Half precision coarsens such scales; what is recorded is the error with them."""
    weights = gaussian(64, 64) * np.float32(2.0**-17)
    rows = quantize_rows(weights, bits, 32)
    assert rows.scales.dtype == np.float16
    assert np.abs(rows.scales).max() < np.finfo(np.float16).tiny
    actual = squared_error(dequantize_rows(rows, bits), weights)
    assert rows.squared_error == pytest.approx(actual, rel=1e-5)
    assert rows.faint_norm == pytest.approx(rows.squared_norm)


@pytest.mark.parametrize("largest", [65504.0, -65504.0])
@bit_widths
def test_weights_at_the_end_of_half_precision_stay_finite(bits, largest):
    weights = np.full((1, 32), largest, np.float32)
    weights[0, ::2] *= -0.7
    found = restored(weights, bits, 32)
    assert np.abs(found).max() <= 65504
    np.testing.assert_allclose(found, weights, rtol=0.1)


def test_usual_weights_are_not_faint():
    assert quantize_rows(gaussian() * np.float32(1e-3), 4, 32).faint_norm == 0


# Special blocks


@bit_widths
@pytest.mark.parametrize("tiny", [0.0, 1e-30, 1e-40])
def test_blocks_of_nothing_stay_nothing(bits, tiny):
    weights = gaussian(2, 96)
    weights[0, 32:64] = tiny
    weights[0, 40] = -tiny
    with np.errstate(divide="raise", invalid="raise"):
        found = quantize_rows(weights, bits, 32)
    assert np.isfinite(found.scales).all()
    values = dequantize_rows(found, bits)
    assert not values[0, 32:64].any()
    np.testing.assert_array_equal(values[1], restored(weights[1:], bits, 32)[0])


@bit_widths
@pytest.mark.parametrize("outlier", [-1024.0, 1024.0])
def test_a_lone_weight_is_almost_exact(bits, outlier):
    weights = np.zeros((1, 32), np.float32)
    weights[0, 17] = outlier
    np.testing.assert_allclose(restored(weights, bits, 32), weights, rtol=2**-11)


@bit_widths
def test_an_outlier_spoils_its_own_block_only(bits):
    weights = gaussian(1, 128)
    spoiled = weights.copy()
    spoiled[0, 70] = 1e4
    before, after = restored(weights, bits, 32)[0], restored(spoiled, bits, 32)[0]
    np.testing.assert_array_equal(before[:64], after[:64])
    np.testing.assert_array_equal(before[96:], after[96:])
    assert after[70] == pytest.approx(1e4, rel=0.01)


@st.composite
def blocks_of_any_kind(draw):
    magnitude = draw(st.sampled_from([1e-12, 1e-5, 1e-2, 1.0, 5e4]))
    usual = np.float32([0.0, 1.0, -1.0, 0.01]).tolist()
    elements = st.floats(-1, 1, width=32) | st.sampled_from(usual)
    return draw(arrays(np.float32, (2, 32), elements=elements)) * np.float32(magnitude)


@bit_widths
@given(weights=blocks_of_any_kind())
def test_no_block_is_worse_than_rounding_to_the_maximum(bits, weights):
    found = np.square(restored(weights, bits, 32).astype(np.float64) - weights).sum(axis=1)
    naive = np.square(by_maximum(weights, bits, 32) - weights).sum(axis=1)
    # Trials are weighed in float32, and scales are rounded: by 2 ** -25 where they are smallest.
    smallest = 32 * (2 ** (bits - 1) * 2.0**-25) ** 2
    rounding = np.square(weights, dtype=np.float64).sum(axis=1) * 1e-6 + smallest
    assert (found <= naive + rounding).all()
