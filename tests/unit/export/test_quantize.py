"""Rounded weights: their tiles, their error, and that no block is worse than naive rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgespec.export.formats.rounding import rounded
from edgespec.export.formats.tile_formats import TILE_FORMATS
from edgespec.export.formats.tiles import levels_of_tiles, tile_weights

FORMATS = "q4_0", "q5_0", "q8_0", "q4_k", "q6_k"
# Of weights of a normal distribution, measured a hundredth below.
ERRORS = {"q4_0": 0.082, "q5_0": 0.041, "q8_0": 0.0054, "q4_k": 0.073, "q6_k": 0.018}
every_format = pytest.mark.parametrize("form", FORMATS)


def gaussian(rows=64, width=512):
    return np.random.default_rng(0).standard_normal((rows, width), dtype=np.float32)


def heavy_tailed():
    return np.random.default_rng(1).standard_t(3, (64, 256)).astype(np.float32)


def with_outliers():
    weights = gaussian()
    weights[:, ::64] *= 8
    return weights


def restored(weights, form, importance=None):
    found = rounded(form, weights, importance)
    return tile_weights(form, found.tiles, *weights.shape)


def by_maximum(weights, bits):
    """The usual way: each block's largest magnitude at the end of the signed range."""
    blocks = weights.reshape(-1, 32).astype(np.float64)
    end = 2 ** (bits - 1) - 1
    scales = np.abs(blocks).max(axis=1, keepdims=True) / end
    levels = np.rint(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0))
    return (levels * scales).reshape(weights.shape)


def squared_error(found, weights):
    return np.square(found.astype(np.float64) - weights).sum()


@every_format
def test_the_error_is_what_such_formats_have(form):
    found = rounded(form, gaussian())
    assert np.sqrt(found.squared_error / found.squared_norm) < ERRORS[form]
    assert found.faint_norm == 0


@every_format
@pytest.mark.parametrize("weights", [gaussian(), heavy_tailed(), with_outliers(), gaussian(300)])
def test_the_reported_error_is_the_actual_one(form, weights):
    found = rounded(form, weights)
    actual = squared_error(restored(weights, form), weights)
    assert found.squared_error == pytest.approx(actual, rel=1e-3)
    assert found.squared_norm == pytest.approx(np.square(weights, dtype=np.float64).sum(), rel=1e-6)


@pytest.mark.parametrize("form", ["q4_0", "q4_k"])
@pytest.mark.parametrize("weights", [gaussian(), heavy_tailed(), with_outliers()])
def test_4_bits_are_well_below_the_error_of_the_maximum(form, weights):
    found = squared_error(restored(weights, form), weights)
    assert found < 0.85 * squared_error(by_maximum(weights, 4), weights)


@every_format
def test_columns_that_count_more_are_nearer(form):
    importance = np.exp(2 * np.random.default_rng(2).standard_normal(512)).astype(np.float32)

    def error(found):
        return float((np.square(found - gaussian()) * importance).sum())

    least = 0.99 if form == "q8_0" else 0.95
    assert error(restored(gaussian(), form, importance)) < least * error(restored(gaussian(), form))


@every_format
def test_columns_that_count_alike_are_rounded_as_without(form):
    alike = np.full(512, 4, np.float32)
    np.testing.assert_allclose(
        restored(gaussian(), form, alike), restored(gaussian(), form), atol=1e-3
    )


@every_format
def test_rows_are_independent(form):
    whole = restored(gaussian(300, 256), form)
    np.testing.assert_array_equal(whole[7:270], restored(gaussian(300, 256)[7:270], form))


@pytest.mark.parametrize("form", ["q4_0", "q5_0", "q8_0"])
@pytest.mark.parametrize("width", [5, 96, 300])
def test_rows_are_filled_up_with_zeros(form, width):
    found = rounded(form, gaussian(7, width))
    levels = levels_of_tiles(form, found.tiles, 7).levels
    assert levels.shape[1] == -(-width // 32) * 32
    assert (levels[:, width:] == TILE_FORMATS[form].zero).all()


# Scales in half precision


@every_format
def test_weights_too_small_for_scales_in_half_precision_are_told(form):
    weights = gaussian(64, 256) * np.float32(2.0**-20)
    found = rounded(form, weights)
    assert found.faint_norm == pytest.approx(found.squared_norm)
    usual = rounded(form, gaussian() * np.float32(1e-3))
    assert usual.faint_norm == 0
    assert usual.squared_error < (1.2 * ERRORS[form]) ** 2 * usual.squared_norm


@pytest.mark.parametrize("largest", [65504.0, -65504.0])
@every_format
def test_weights_at_the_end_of_half_precision_stay_finite(form, largest):
    weights = np.full((1, 256), largest, np.float32)
    weights[0, ::2] *= -0.7
    np.testing.assert_allclose(restored(weights, form), weights, rtol=0.1)


# Special blocks


@every_format
@pytest.mark.parametrize("tiny", [0.0, 1e-30, 1e-40])
def test_blocks_of_nothing_stay_nothing(form, tiny):
    weights = gaussian(2, 512)
    weights[0, 256:] = tiny
    weights[0, 300] = -tiny
    with np.errstate(divide="raise", invalid="raise"):
        values = restored(weights, form)
    assert not values[0, 256:].any()
    np.testing.assert_array_equal(values[1], restored(weights[1:], form)[0])


@every_format
@given(arrays(np.float32, (2, 256), elements=st.floats(-1e4, 1e4, width=32)))
def test_no_weights_are_far_away(form, weights):
    off = np.abs(restored(weights, form) - weights).reshape(-1, 256).max(axis=1)
    assert (off <= 0.2 * np.abs(weights).max(axis=1) + 1e-3).all()
