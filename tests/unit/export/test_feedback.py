"""Matrices rounded by what they read: the error in their products, and where they wait."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.export import RoundedMatrices
from edgespec.export.formats.gptq import Columns, rounded_with_feedback
from edgespec.export.formats.rounding import rounded
from edgespec.export.formats.tiles import tile_weights


def test_a_spool_leaves_nothing(tmp_path):
    rows = rounded("q4_0", np.ones((4, 64), np.float32))
    counts = np.ones(64, np.float32)
    with RoundedMatrices(tmp_path, dict.fromkeys(("ones", "again"), "q4_0")) as kept:
        kept.keep("ones", rows, None)
        kept.keep("again", rows, counts)
        for name in ("again", "ones"):
            np.testing.assert_array_equal(kept[name].tiles, rows.tiles)
            assert kept[name].squared_error == rows.squared_error
        assert kept.importance == {"again": counts}
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


def restored(found, weights):
    return tile_weights(found.format, found.tiles, *weights.shape)


@pytest.mark.parametrize(
    ("width", "form"), [(128, "q4_0"), (80, "q4_0"), (2304, "q4_k"), (96, "q5_0"), (256, "q6_k")]
)
def test_products_change_less_than_without_feedback(width, form):
    """Of the widest, columns make up for each other in two runs."""
    x = inputs(width)
    weights = gaussian(width)

    def change(found):
        return float(np.square(x @ (restored(found, weights) - weights).T).sum())

    with_feedback = rounded_with_feedback(form, weights, Columns(x))
    assert change(with_feedback) < 0.75 * change(rounded(form, weights))
    actual = np.square(restored(with_feedback, weights) - weights).sum()
    assert with_feedback.squared_error == pytest.approx(actual, rel=1e-3)


def test_a_factor_is_of_the_inverse_of_damped_moments():
    """Also where it is put together from parts of several sizes."""
    x = inputs(700)
    [(_, factor)] = Columns(x).runs()
    moments = x.T.astype(np.float64) @ x / len(x)
    moments[np.diag_indices(700)] += np.diag(moments).mean()
    wide = factor.astype(np.float64)
    assert not np.tril(wide, -1).any()
    # Measured: below 1e-5.
    np.testing.assert_allclose(wide.T @ wide @ moments, np.eye(700), atol=1e-4)


@pytest.mark.parametrize("form", ["q4_0", "q4_k"])
def test_each_row_is_rounded_by_itself(form):
    """Threads take some of them each."""
    x = inputs(256)
    weights = gaussian(256)
    columns = Columns(x)
    whole = restored(rounded_with_feedback(form, weights, columns), weights)
    some = rounded_with_feedback(form, weights[10:21], columns)
    np.testing.assert_array_equal(restored(some, weights[10:21]), whole[10:21])


@pytest.mark.parametrize("form", ["q4_0", "q4_k"])
def test_columns_that_have_nothing_in_common_are_rounded_to_the_nearest(form):
    weights = gaussian(256)
    x = np.eye(256, dtype=np.float32) * 8
    found = rounded_with_feedback(form, weights, Columns(x))
    nearest = rounded(form, weights, np.ones(256, np.float32))
    np.testing.assert_allclose(restored(found, weights), restored(nearest, weights), atol=1e-6)


def test_inputs_that_are_all_zero_are_no_reason_to_fail():
    weights = gaussian(64)
    found = rounded_with_feedback("q4_0", weights, Columns(np.zeros((9, 64), np.float32)))
    assert found.squared_error < 0.03 * found.squared_norm


def test_weights_that_are_all_zero_stay_so():
    weights = np.zeros((4, 64), np.float32)
    assert not restored(rounded_with_feedback("q4_0", weights, Columns(inputs(64))), weights).any()
