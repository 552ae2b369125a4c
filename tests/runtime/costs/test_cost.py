"""Cost curves: monotone whatever was measured and observed, and quick to learn."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.runtime.curve import Curve
from edgespec.runtime.shapes import FINE_ROWS, ROW_BUCKETS

CAPACITIES = (128, 256, 300, 384, 1024, 1500, 2048, 8192)
ROWS = range(1, ROW_BUCKETS[-1] + 1)
MEASURED = {256: {1: 0.022, 2: 0.026, 4: 0.030, 8: 0.040}, 1024: {1: 0.026, 8: 0.056}}
times = st.floats(1e-6, 10)
points = st.dictionaries(
    st.integers(1, 5000),
    st.dictionaries(st.integers(1, 128), times, min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)
observations = st.lists(
    st.tuples(st.integers(1, 128), st.sampled_from(CAPACITIES), st.floats(0, 10)), max_size=40
)


def monotone(curve, buckets=ROW_BUCKETS):
    grid = np.array([[curve.seconds(n, c) for n in ROWS] for c in CAPACITIES])
    assert (grid > 0).all()
    rising = 1 - 1e-12
    assert (grid[:, 1:] >= grid[:, :-1] * rising).all()
    assert (grid[1:] >= grid[:-1] * rising).all()
    for n in ROWS:  # a call costs what its bucket costs
        assert grid[0, n - 1] == grid[0, min(b for b in buckets if b >= n) - 1]
    return True


@given(points, observations, st.sampled_from([ROW_BUCKETS, FINE_ROWS]))
@settings(max_examples=60)
def test_costs_never_fall_whatever_is_seen(measured, seen, buckets):
    curve = Curve(measured, buckets)
    assert monotone(curve, buckets)
    for observation in seen:
        curve.observe(*observation)
    assert monotone(curve, buckets)


def test_what_is_scaled_has_the_same_buckets():
    half = Curve({256: {1: 0.02, 5: 0.06}}, FINE_ROWS).scaled(0.5)
    assert half.seconds(3, 256) == pytest.approx(0.02)
    assert Curve({256: {1: 0.02, 5: 0.06}}).seconds(3, 256) == pytest.approx(0.05)


def test_measured_points_that_rise_are_kept():
    curve = Curve(MEASURED)
    for capacity, by_rows in MEASURED.items():
        for n, seconds in by_rows.items():
            assert curve.seconds(n, capacity) == pytest.approx(seconds)


def test_between_points_the_curve_is_linear():
    curve = Curve(MEASURED)
    assert Curve({512: {1: 0.02, 8: 0.03}}).seconds(2, 512) == pytest.approx(0.02 + 0.01 / 7)
    assert curve.seconds(8, 640) == pytest.approx((0.040 + 0.056) / 2)
    assert curve.seconds(3, 256) == curve.seconds(4, 256)


def test_rows_measured_at_one_capacity_grow_as_those_beside_them():
    """A staircase over rows stays one, since only what the capacity adds is interpolated."""
    quick = Curve({256: {1: 0.02, 2: 0.02, 4: 0.04, 32: 0.3}, 2048: {1: 0.03, 4: 0.08}})
    more = {1: 0.01, 2: 0.02, 4: 0.04, 8: 0.08, 32: 0.32}  # 0.01 for each row
    for n in (1, 2, 4, 32):
        for capacity in (2048, 8192):
            share = (capacity - 256) / (2048 - 256)
            assert quick.seconds(n, capacity) == pytest.approx(
                quick.seconds(n, 256) + share * more[n]
            )
    faster = Curve({256: {1: 0.02, 4: 0.04, 32: 0.3}, 2048: {1: 0.02, 4: 0.03}})
    assert faster.seconds(32, 2048) == pytest.approx(0.3)


def test_where_capacities_are_fixed_a_call_costs_what_its_bucket_costs():
    points = {1024: {1: 0.02, 8: 0.03}, 4096: {1: 0.04, 8: 0.06}}
    for curve in (Curve(points, fixed=(1024, 4096)), Curve(points, fixed=(1024, 4096)).scaled(1)):
        for capacity, known in ((256, 1024), (1024, 1024), (1280, 4096), (4096, 4096)):
            assert curve.seconds(8, capacity) == pytest.approx(points[known][8])


# Qwen2.5-Coder-1.5B in int4 by OpenVINO: seconds of processor time by rows and capacity.
REAL = {
    256: {1: 0.0940, 2: 0.0923, 8: 0.1334, 32: 0.4090},
    4096: {1: 0.1420, 2: 0.1386, 8: 0.2325, 32: 0.7004},
    8192: {1: 0.1938, 2: 0.1842, 8: 0.3207, 32: 1.0523},
}


def test_a_long_text_teaches_a_short_one_nothing_wrong():
    quick = {256: REAL[256], 4096: {n: REAL[4096][n] for n in (1, 8)}}
    curve, alone = Curve(quick), Curve({256: REAL[256]})
    for n, true in REAL[8192].items():
        assert curve.seconds(n, 8192) == pytest.approx(true, rel=0.15)
    for _ in range(50):
        for each in (curve, alone):
            each.observe(1, 8192, REAL[8192][1])
            each.observe(8, 8192, REAL[8192][8])
    for n, true in REAL[256].items():
        assert curve.seconds(n, 256) == pytest.approx(true, rel=0.1)
    # What one capacity tells of all of them is what such a text would make of the costs.
    assert alone.seconds(1, 256) > 1.9 * REAL[256][1]


def test_beyond_the_points_the_last_slope_goes_on():
    curve = Curve(MEASURED)
    assert curve.seconds(16, 256) == pytest.approx(0.040 + 8 * 0.0025)
    assert curve.seconds(1, 1792) == pytest.approx(0.030)
    assert curve.seconds(1, 64) == curve.seconds(1, 256)
    alone = Curve({512: {4: 0.02, 8: 0.03}})
    assert alone.seconds(1, 512) == pytest.approx(0.02)
    assert alone.seconds(8, 64) == alone.seconds(8, 4096) == pytest.approx(0.03)
    assert Curve({256: {4: 0.02}}).seconds(64, 256) == pytest.approx(0.02)


def test_points_that_fall_are_pooled_at_their_geometric_mean():
    curve = Curve({256: {1: 0.01, 2: 0.04, 4: 0.01, 8: 0.05}})
    assert curve.seconds(2, 256) == curve.seconds(4, 256) == pytest.approx(0.02)
    assert curve.seconds(8, 256) == pytest.approx(0.05)
    larger_is_faster = Curve({256: {1: 0.04}, 1024: {1: 0.01}})
    assert larger_is_faster.seconds(1, 512) == pytest.approx(0.02)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {256: {}},
        *({256: {1: time}} for time in (0.0, -1.0, math.nan, math.inf)),
        {256: {0: 1.0}},
    ],
)
def test_what_is_no_time_is_refused(wrong):
    with pytest.raises(ValueError, match="positive finite times"):
        Curve(wrong)


# What is observed


@given(st.sampled_from([1, 2, 8, 32]), st.sampled_from(CAPACITIES), st.floats(0.3, 4))
def test_a_step_of_the_true_cost_is_followed_in_ten_calls(rows, capacity, factor):
    curve = Curve(MEASURED)
    for true in (curve.seconds(rows, capacity), curve.seconds(rows, capacity) * factor):
        for _ in range(12):
            curve.observe(rows, capacity, true)
        assert curve.seconds(rows, capacity) == pytest.approx(true, rel=0.05)


def test_a_clock_may_stand_still():
    curve = Curve(MEASURED)
    curve.observe(8, 256, 0.0)
    assert curve.seconds(8, 256) == pytest.approx(0.040, rel=0.07)


@given(st.sampled_from([1, 2, 8, 32]), st.sampled_from([1 / 20, 20.0, 1e6]))
def test_one_outlier_moves_it_little_and_is_soon_forgotten(rows, factor):
    curve = Curve(MEASURED)
    true = curve.seconds(rows, 256)
    curve.observe(rows, 256, true * factor)
    assert curve.seconds(rows, 256) == pytest.approx(true, rel=0.07)
    for _ in range(5):
        curve.observe(rows, 256, true)
    assert curve.seconds(rows, 256) == pytest.approx(true, rel=0.01)


def test_scattered_outliers_do_not_add_up():
    curve, rng = Curve(MEASURED), random.Random(0)
    true = curve.seconds(8, 256)
    for call in range(200):
        noise = math.exp(rng.gauss(0, 0.05))
        curve.observe(8, 256, true * noise * (20 if call % 7 == 0 else 1))
        assert curve.seconds(8, 256) == pytest.approx(true, rel=0.15)


@given(st.sampled_from([1, 2, 8, 32]), st.sampled_from([1.5, 2.0, 20.0]))
def test_outliers_that_contradict_each_other_do_not_add_up(rows, factor):
    curve = Curve(MEASURED)
    true = curve.seconds(rows, 256)
    for call in range(8):
        curve.observe(rows, 256, true / factor if call % 2 else true * factor)
        assert curve.seconds(rows, 256) == pytest.approx(true, rel=0.07)


@pytest.mark.parametrize(("before", "calls"), [(0, 60), (200, 200)])
def test_wrong_shapes_are_learned_bucket_by_bucket(before, calls):
    """As when a curve of two points stands for all buckets, or they change after long."""
    curve, rng = Curve({256: {1: 0.02, 8: 0.04}}), random.Random(1)
    for call in range(before):
        n = (1, 2, 4, 8)[call % 4]
        curve.observe(n, 256, curve.seconds(n, 256))
    true = {1: 0.021, 2: 0.022, 4: 0.036, 8: 0.039}
    for call in range(calls):
        n = (1, 2, 4, 8)[call % 4]
        curve.observe(n, 256, true[n] * math.exp(rng.gauss(0, 0.02)))
    for n, seconds in true.items():
        assert curve.seconds(n, 256) == pytest.approx(seconds, rel=0.06)


def test_a_slower_machine_slows_what_is_not_seen():
    """Else plain decoding would look good as soon as verification gets hot."""
    curve = Curve(MEASURED)
    before = {n: curve.seconds(n, 1024) for n in (1, 8)}
    for n in itertools.islice(itertools.cycle((1, 8)), 40):
        curve.observe(n, 256, curve.seconds(n, 256))
    for _ in range(15):
        curve.observe(8, 256, 2 * 0.040)
    for n, seconds in before.items():
        assert curve.seconds(n, 1024) == pytest.approx(2 * seconds, rel=0.12)


def test_what_was_seen_outweighs_what_was_not():
    """Four rows were measured dearer than eight now turn out to be."""
    curve = Curve({256: {1: 0.01, 4: 0.039, 8: 0.04}})
    for _ in range(30):
        curve.observe(1, 256, 0.01)
        curve.observe(8, 256, 0.02)
    assert curve.seconds(8, 256) == pytest.approx(0.02, rel=0.05)
    assert curve.seconds(4, 256) <= curve.seconds(8, 256)


def test_a_scaled_curve_starts_at_what_was_measured_and_learns_alone():
    curve = Curve({256: {1: 1.0, 8: 2.0, 32: 5.0}, 1024: {1: 2.0, 8: 3.0, 32: 6.0}})
    for _ in range(30):
        curve.observe(8, 256, 9.0)
    half = curve.scaled(0.5)
    assert half.seconds(1, 256) == pytest.approx(0.5)
    assert half.seconds(8, 256) == pytest.approx(1.0)
    assert half.seconds(32, 1024) == pytest.approx(3.0)
    before = curve.seconds(1, 256)
    half.observe(1, 256, 0.1)
    assert half.seconds(1, 256) < 0.5
    assert curve.seconds(1, 256) == before
