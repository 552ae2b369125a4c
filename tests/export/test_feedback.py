"""Matrices rounded by what they read: the error in their products, and where they wait."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.export import RoundedMatrices
from edgespec.export.formats.blocks import best_scales, dequantize_rows, quantize_rows
from edgespec.export.formats.gptq import Columns, quantize_with_feedback


def test_a_spool_leaves_nothing(tmp_path):
    rows = quantize_rows(np.ones((4, 64), np.float32), 4, 32)
    with RoundedMatrices(tmp_path) as rounded:
        rounded.keep("ones", rows)
        rounded.keep("again", rows)
        for name in ("again", "ones"):
            np.testing.assert_array_equal(rounded[name].packed, rows.packed)
            np.testing.assert_array_equal(rounded[name].scales, rows.scales)
    assert not list(tmp_path.iterdir())


# How matrices are rounded


def inputs(width):
    """Columns of different size that go with each other."""
    rng = np.random.default_rng(0)
    mixed = rng.standard_normal((4096, width)) @ rng.standard_normal((width, width)) * 0.3
    scales = np.exp(rng.standard_normal(width))
    return ((mixed + rng.standard_normal((4096, width))) * scales).astype(np.float32)


def gaussian(width):
    return np.random.default_rng(1).standard_normal((48, width), dtype=np.float32)


@pytest.mark.parametrize(("width", "size"), [(128, 32), (80, 32), (2304, 128)])
def test_products_change_less_than_without_feedback(width, size):
    """The last one's columns make up for each other in two runs."""
    x, weights = inputs(width), gaussian(width)

    def change(found):
        rounded = dequantize_rows(found, 4)[:, :width]
        return float(np.square(x @ (rounded - weights).T).sum())

    with_feedback = quantize_with_feedback(weights, Columns(x, size))
    assert change(with_feedback) < 0.75 * change(quantize_rows(weights, 4, size))
    assert with_feedback.packed.shape == (48, -(-width // size), size // 2)


def test_a_factor_is_of_the_inverse_of_damped_moments():
    """Also where it is put together from parts of several sizes."""
    x = inputs(700)
    [(_, factor)] = Columns(x, 32).runs()
    moments = x.T.astype(np.float64) @ x / len(x)
    moments[np.diag_indices(700)] += np.diag(moments).mean()
    wide = factor.astype(np.float64)
    assert not np.tril(wide, -1).any()
    # Measured: below 1e-5.
    np.testing.assert_allclose(wide.T @ wide @ moments, np.eye(700), atol=1e-4)


def test_each_row_is_rounded_by_itself():
    """Threads take some of them each."""
    x, weights = inputs(128), gaussian(128)
    columns = Columns(x, 32)
    whole = quantize_with_feedback(weights, columns)
    half = quantize_with_feedback(weights[10:21], columns)
    np.testing.assert_array_equal(half.packed, whole.packed[10:21])
    np.testing.assert_array_equal(half.scales, whole.scales[10:21])


def test_columns_that_have_nothing_in_common_are_rounded_to_the_nearest():
    """With the scales of `best_scales`, whose columns count by importance."""
    weights, x = gaussian(64), np.eye(64, dtype=np.float32) * 8
    found = quantize_with_feedback(weights, Columns(x, 32))
    scales = best_scales(weights, 4, 32, np.ones(64, np.float32))
    np.testing.assert_array_equal(found.scales, scales.astype(np.float16))
    nearest = np.rint(weights.reshape(48, 2, 32) / scales[:, :, None]).clip(-8, 7)
    restored = (nearest * scales[:, :, None]).reshape(48, 64)
    np.testing.assert_allclose(dequantize_rows(found, 4), restored, atol=1e-6)


def test_inputs_that_are_all_zero_are_no_reason_to_fail():
    weights = gaussian(64)
    found = quantize_with_feedback(weights, Columns(np.zeros((9, 64), np.float32), 32))
    assert found.squared_error < 0.03 * found.squared_norm


def test_weights_that_are_all_zero_stay_so():
    found = quantize_with_feedback(np.zeros((4, 64), np.float32), Columns(inputs(64), 32))
    assert not dequantize_rows(found, 4).any()


def test_scales_follow_what_counts():
    rng = np.random.default_rng(0)
    weights, importance = gaussian(64), np.exp(2 * rng.standard_normal(64)).astype(np.float32)

    def error(scales):
        levels = np.rint(weights.reshape(48, 2, 32) / scales[:, :, None]).clip(-8, 7)
        off = (levels * scales[:, :, None]).reshape(48, 64) - weights
        return float((np.square(off) * importance).sum())

    plain = best_scales(weights, 4, 32, np.full(64, 4, np.float32))
    np.testing.assert_array_equal(plain, quantize_rows(weights, 4, 32).scales)
    assert error(best_scales(weights, 4, 32, importance)) < 0.95 * error(plain)
