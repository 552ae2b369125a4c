"""Tests of tree sizes against all sizes, and of the schedule of a source."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.planning.planner import TRIALS, SourceSchedule, best_size, cheapest_row
from edgespec.runtime.shapes import FINE_ROWS, ROW_BUCKETS
from edgespec.runtime.trees.proposal import Forecast

FLAT = dict(zip((1, 2, 4, 8, 16, 32, 64, 128), (37, 38, 42, 47, 66, 110, 200, 390), strict=True))
STEEP = dict(zip((1, 2, 4, 8, 16, 32, 64, 128), (35, 39, 53, 76, 122, 230, 440, 870), strict=True))


def cost(curve):
    """A cost function from a curve by buckets: rows cost what the next bucket does."""
    return lambda rows: min(ms for bucket, ms in curve.items() if bucket >= rows) / 1e3


@st.composite
def gains(draw):
    """Expected accepted tokens of the best n nodes."""
    values = sorted(draw(st.lists(st.floats(0, 1), max_size=40)), reverse=True)
    return [sum(values[:n]) for n in range(len(values) + 1)]


@st.composite
def curves(draw):
    buckets = draw(st.sampled_from([ROW_BUCKETS, FINE_ROWS]))
    count = len(buckets)
    steps = draw(st.lists(st.floats(0, 50), min_size=count, max_size=count))
    return dict(zip(buckets, [sum(steps[:n]) + 1 for n in range(count)], strict=True))


@given(gains(), curves(), st.floats(0, 0.1))
def test_no_other_number_of_nodes_is_better(expected, curve, spent):
    verify = cost(curve)
    size = best_size(expected, verify, spent)
    rates = [(1 + gain) / (spent + verify(n + 1)) for n, gain in enumerate(expected)]
    assert size.rate == pytest.approx(max(rates))
    assert size.forecast.tokens == 1 + expected[size.nodes]
    assert size.forecast.seconds == pytest.approx(spent + verify(size.nodes + 1))


def test_nothing_proposed_is_plain_decoding():
    assert best_size([0.0], cost(FLAT), 0.0).nodes == 0


def test_a_steep_curve_gets_a_smaller_tree():
    expected = [sum(0.6**n for n in range(1, k + 1)) for k in range(32)]
    assert best_size(expected, cost(FLAT), 0.004).nodes == 7
    assert best_size(expected, cost(STEEP), 0.004).nodes == 3
    hopeless = [0.02 * k for k in range(8)]
    assert best_size(hopeless, cost(STEEP), 0.0).nodes == 0


@given(curves(), st.integers(1, 64))
def test_the_cheapest_row_is_that_of_a_pass_up_to_the_bucket_of_the_most(curve, most):
    verify = cost(curve)
    filled = next(bucket for bucket in FINE_ROWS[1:] if bucket >= most)
    least = min((verify(rows) - verify(1)) / (rows - 1) for rows in range(2, filled + 1))
    assert cheapest_row(verify, most) == pytest.approx(least, abs=1e-12)


# When to ask


def run(schedule, rounds, promise, alternative):
    """The rounds that asked a source that promises `promise(round)` tokens a second."""
    asked = []
    for number in range(rounds):
        if schedule.should_ask(alternative):
            asked.append(number)
            schedule.record(Forecast(promise(number) / 4, 0.25), alternative)
    return asked


def waits_between(asked):
    return [later - earlier for earlier, later in pairwise(asked)]


def first_probe(schedule):
    """The first round in which a source that always loses is probed."""
    number = 0
    while not (schedule.should_ask(1.0) and schedule.probing):
        if schedule.rate == math.inf:  # a trial
            schedule.record(Forecast(0.5, 1.0), 1.0)
        number += 1
    return number


def test_a_source_that_wins_is_always_asked():
    assert run(SourceSchedule(), 50, lambda _: 2.0, 1.0) == list(range(50))


def test_a_source_that_loses_is_asked_ever_more_rarely():
    asked = run(SourceSchedule(), 2000, lambda _: 0.9, 1.0)
    assert asked[:TRIALS] == list(range(TRIALS))
    waits = waits_between(asked[TRIALS - 1 :])
    assert len(waits) > 6
    assert all(later == min(2 * earlier, max(waits)) for earlier, later in pairwise(waits))


def test_a_source_that_became_better_is_found_again():
    asked = run(SourceSchedule(), 200, lambda number: 0.5 if number < 40 else 2.0, 1.0)
    assert set(range(60, 200)) <= set(asked)
    assert len([number for number in asked if number < 40]) <= 7


def test_one_that_was_better_for_a_while_is_tried_soon_when_it_loses_again():
    asked = run(SourceSchedule(), 320, lambda number: 2.0 if 100 <= number < 180 else 0.5, 1.0)
    assert set(range(122, 180)) <= set(asked)
    last = asked.index(180)
    while asked[last + 1] == asked[last] + 1:  # until what it promised is forgotten
        last += 1
    waits = waits_between(asked[last:])
    assert waits[0] == first_probe(SourceSchedule()) - (TRIALS - 1)
    assert all(later == 2 * earlier for earlier, later in pairwise(waits))


def test_a_few_poor_rounds_do_not_dismiss_a_good_source():
    asked = run(SourceSchedule(), 60, lambda number: 0.6 if number % 5 == 4 else 2.0, 1.0)
    assert asked == list(range(60))


def test_what_is_in_use_is_not_given_up_for_a_trifle():
    """Nor is an unused source taken up for a small gain."""
    schedule = SourceSchedule()
    run(schedule, 10, lambda _: 1.1, 1.0)
    assert schedule.should_ask(1.09)
    assert not schedule.should_ask(1.2)
    assert not schedule.should_ask(1.08)
    assert schedule.should_ask(1.04)


def test_a_probe_is_told_from_a_round_in_earnest():
    schedule = SourceSchedule()
    run(schedule, 3, lambda _: 0.5, 1.0)
    assert not schedule.should_ask(1.0)
    assert not schedule.probing
    while not schedule.should_ask(1.0):
        pass
    assert schedule.probing
    schedule.record(Forecast(2.0, 1.0), 1.0)
    assert schedule.should_ask(1.0)
    assert not schedule.probing


def test_the_rate_of_a_source_is_open_until_it_was_tried():
    schedule = SourceSchedule(trials=2)
    assert schedule.rate == math.inf
    for _ in range(2):
        assert schedule.should_ask(100.0)
        schedule.record(Forecast(3.0, 0.5), 100.0)
    assert schedule.rate == pytest.approx(6.0)


def test_a_source_that_is_known_to_lose_waits_for_its_probe():
    schedule = SourceSchedule(trials=0)
    assert schedule.rate == 0
    assert first_probe(schedule) > first_probe(SourceSchedule())
    assert schedule.probing
