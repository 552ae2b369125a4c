"""Tokens per second by acceptance, from what calls cost: against counting, and laws that hold."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.deployment.throughput import Pair, plain
from edgespec.runtime.shapes import FINE_ROWS, ROW_BUCKETS, row_bucket

LENGTHS = [rows - 1 for rows in FINE_ROWS[1:]]  # that fill a bucket with the pending token


def staircase(*seconds):
    """A pass by its bucket of rows."""
    return lambda rows: seconds[ROW_BUCKETS.index(row_bucket(rows))]


SHARES = st.floats(0, 1)
TIMES = st.lists(st.floats(1e-4, 0.1), min_size=6, max_size=6).map(sorted)
PAIRS = st.builds(
    lambda times, draft, longest: Pair(staircase(*times), draft, longest),
    TIMES, st.floats(1e-5, 0.05), st.integers(1, 31),
)  # fmt: skip


def no_less(more, less):
    return more >= less * (1 - 1e-12)


def counted(acceptance, guesses, rounds=100_000):
    """Tokens of a round, and how often all guesses and the next one were right, by trying."""
    draws = random.Random(0)
    tokens = hits = 0
    for _ in range(rounds):
        right = 0
        while right <= guesses and draws.random() < acceptance:
            right += 1
        tokens += 1 + min(right, guesses)
        hits += right == guesses + 1
    return tokens / rounds, hits / rounds


@pytest.mark.parametrize("acceptance", [0, 0.6, 0.9, 1])
@pytest.mark.parametrize("guesses", [1, 3])
@pytest.mark.parametrize(("draft", "saved"), [(4, 1), (13, 23 / 39), (40, 0)])
def test_rates_are_what_is_counted(acceptance, guesses, draft, saved):
    """A pass of 30 ms takes 36 beside drafts: but for one call, that is saved of three."""
    pair = Pair(lambda rows: 0.03 if rows == guesses + 1 else 1e6, draft * 1e-3, 31)
    tokens, hits = counted(acceptance, guesses)
    drafting = guesses * draft
    assert pair.serial(acceptance) == pytest.approx(1e3 * tokens / (drafting + 30), rel=0.02)
    share = min(1, saved * 3 / guesses)
    busy = 36 + (1 - share * hits) * drafting
    assert pair.overlap(acceptance, 1.2) == pytest.approx(1e3 * tokens / busy, rel=0.02)


@given(PAIRS, st.floats(0, 0.99))
def test_the_length_of_a_draft_is_the_best_that_fills_a_bucket_or_the_longest(pair, acceptance):
    def rate(n):
        tokens = sum(acceptance**depth for depth in range(n + 1))
        return tokens / (n * pair.draft + pair.verify(n + 1))

    lengths = {min(n, pair.longest) for n in LENGTHS}
    assert pair.serial(acceptance) == pytest.approx(max(map(rate, lengths)))


@pytest.mark.parametrize("longest", range(1, 32))
def test_where_all_guesses_are_right_and_cost_little_the_longest_draft_is_best(longest):
    pair = Pair(lambda _rows: 0.03, 1e-6, longest)
    assert plain(pair.verify) == pytest.approx(1 / 0.03)
    assert pair.serial(1) == pytest.approx((longest + 1) / (0.03 + longest * 1e-6))


@given(PAIRS, SHARES, SHARES, st.floats(1, 3))
def test_more_that_is_right_is_never_worse(pair, one, other, slowdown):
    low, high = sorted((one, other))
    assert no_less(pair.serial(high), pair.serial(low))
    assert no_less(pair.overlap(high, slowdown), pair.overlap(low, slowdown))


@given(PAIRS, st.floats(1, 3))
def test_drafts_that_are_never_right_are_no_better_than_none(pair, slowdown):
    assert pair.serial(0) < plain(pair.verify)
    assert pair.overlap(0, slowdown) < plain(pair.verify)


@given(PAIRS, SHARES, st.floats(1, 3))
def test_working_ahead_costs_what_the_devices_cost_each_other_and_nothing_else(
    pair, acceptance, slowdown
):
    assert no_less(pair.overlap(acceptance, 1), pair.serial(acceptance))
    assert no_less(pair.overlap(acceptance, 1), pair.overlap(acceptance, slowdown))


@given(PAIRS, SHARES, st.floats(1, 3))
def test_no_round_is_shorter_than_its_pass(pair, acceptance, slowdown):
    most = max((n + 1) / pair.verify(n + 1) for n in range(1, pair.longest + 1))
    assert no_less(most / slowdown, pair.overlap(acceptance, slowdown))
