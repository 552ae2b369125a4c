"""The search for skip sets on made-up models: which sets it tries, and what it finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skips import CALL, costs_of

from edgespec.bundle.sublayers import Sublayers
from edgespec.export.skipping.costs import Agreements, as_bits
from edgespec.export.skipping.search import (
    MOST_SETS,
    Problem,
    choose,
    exits,
    random_set,
    ranked,
    search,
    step,
)
from edgespec.export.skipping.sets import MOST_STAGES, skip_cuts


def problem_of(layers, seed):
    """Damages that differ much from sublayer to sublayer, and pairs that belong together.

    Sampled text is harder than greedy text.
    """
    rng = np.random.default_rng(seed)
    damage = rng.gamma(0.7, 1 / layers, 2 * layers)
    pairs = np.triu(rng.normal(0, 0.01, (2 * layers, 2 * layers)), 1)
    luck = rng.random((4, 112))

    def evaluate(skipped):
        x = as_bits([skipped], Sublayers.pairs(layers))[0].astype(float)
        agreement = np.exp(-max(x @ damage + x @ pairs @ x, 0))
        return Agreements(list(luck[:2] < agreement**0.8), list(luck[2:] < agreement**1.2))

    return Problem(costs_of(layers), "any", evaluate)


def best_of(problem, sets):
    return ranked(map(problem.trial, sets))[0].score.tokens_per_second


def best_of_random(problem, count, seed):
    rng = np.random.default_rng(seed)
    return best_of(problem, [random_set(problem.costs, rng) for _ in range(count)])


@pytest.mark.parametrize("layers", [8, 14])
def test_the_search_is_better_than_random_sets_and_exits(layers):
    """On average, since either may be lucky; never much worse."""
    ratios = []
    for seed in range(6):
        problem = problem_of(layers, seed)
        found = search(problem, 40, seed)
        assert len(found) == 40
        best = found[0].score.tokens_per_second
        ratios.append(best / best_of_random(problem, 40, seed + 100))
        assert best >= 0.95 * best_of(problem, exits(problem.costs))
    assert min(ratios) >= 0.95
    assert np.mean(ratios) > 1


def all_legal(layers):
    every = np.array(list(np.ndindex((2,) * (2 * layers - 4))), np.bool_)
    every = np.pad(every, ((0, 0), (2, 2)))
    inner = [tuple(map(int, np.flatnonzero(row))) for row in every if is_legal(row, layers)]
    return [*inner, *(tuple(range(first, 2 * layers)) for first in range(2, 2 * layers, 2))]


@pytest.mark.parametrize("seed", range(3))
def test_the_search_finds_the_best_of_all_sets_or_nearly(seed):
    problem = problem_of(6, seed)
    every = all_legal(6)
    assert len(every) > 150
    found = search(problem, 40, seed)[0]
    assert found.score.tokens_per_second >= 0.97 * best_of(problem, every)


def test_the_same_seed_and_count_try_the_same_sets():
    problem = problem_of(8, 3)
    first, again, other = (search(problem, 25, seed) for seed in (1, 1, 2))
    assert [one.skipped for one in first] == [one.skipped for one in again]
    assert [one.skipped for one in first] != [one.skipped for one in other]


def test_the_search_stops_when_time_is_up():
    told = []

    def go_on(done, total):
        told.append((done, total))
        return done < 9

    assert len(search(problem_of(8, 0), 30, 0, go_on)) == 9
    assert told == [(done, 30) for done in range(1, 10)]


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_a_small_model_is_searched_to_the_end(layers):
    """Of two layers there is one set; none is tried twice, and the search ends."""
    found = search(problem_of(layers, 0), 60, 0)
    names = [one.skipped for one in found]
    assert len(set(names)) == len(names)
    if layers < 4:
        assert len(names) == {2: 1, 3: 5}[layers]
    assert search(problem_of(1, 0), 60, 0) == []


@pytest.mark.parametrize("seed", range(6))
def test_what_is_chosen_fits_a_bundle(seed):
    layers = 8
    problem, layout = problem_of(layers, seed), Sublayers.pairs(layers)
    tried = search(problem, 40, seed)
    for one in tried:
        assert min(one.skipped) >= 2
        assert max(one.skipped) < 2 * layers - 2 or problem.is_exit(one)
        assert len(skip_cuts([one.skipped], layout)) < MOST_STAGES
    chosen = choose(tried, problem)
    assert chosen[0] is tried[0]
    assert 2 <= len(chosen) <= (MOST_SETS if chosen[0].score.pays else 2)
    cuts = skip_cuts([one.skipped for one in chosen], layout)
    assert len(cuts) < MOST_STAGES
    # An early exit is among them wherever one fits beside the best.
    early = [one for one in tried if problem.is_exit(one)]
    fitting = len(skip_cuts([tried[0].skipped, early[0].skipped], layout)) < MOST_STAGES
    assert any(map(problem.is_exit, chosen)) or not fitting


def test_of_sets_that_promise_nothing_two_are_enough():
    never = [np.zeros(100, np.bool_)]
    problem = replace(problem_of(8, 0), evaluate=lambda skipped: Agreements(never, never))
    chosen = choose(search(problem, 20, 0), problem)
    assert len(chosen) == 2
    assert not any(one.score.pays for one in chosen)


def test_sets_that_pay_on_one_kind_of_text_are_worth_more_than_two():
    agreed = {kind: [np.full(100, kind == "greedy")] for kind in ("greedy", "sampled")}
    problem = replace(problem_of(8, 0), evaluate=lambda skipped: Agreements(**agreed))
    chosen = choose(search(problem, 20, 0), problem)
    best = chosen[0].score
    assert best.speedup(sampled=False) > 1 > best.speedup(sampled=True)
    assert len(chosen) > 2


@pytest.mark.parametrize(
    ("third", "agreement", "others", "call", "joins"),
    [
        (range(4, 10), 1, 1, CALL, True),
        (range(4, 10), 0, 1, CALL, False),  # much worse than the best
        (range(2, 10), 1, 1, CALL, False),  # costs what the best does
        (range(3, 10), 1, 1, CALL, True),
        (range(3, 10), 1, 1, 1e-3, False),  # its cuts take from the best
        (range(4, 10), 0, 0, CALL, False),  # nothing is worth cuts
    ],
)
def test_a_third_set_is_worth_its_cuts(third, agreement, others, call, joins):
    def evaluate(skipped):
        agreed = [np.full(100, agreement if skipped == tuple(third) else others, np.bool_)]
        return Agreements(agreed, agreed)

    problem = Problem(replace(costs_of(8), call=call), "any", evaluate)
    tried = [problem.trial(tuple(each)) for each in (range(4, 12), range(6, 10), third)]
    assert tried[0].score.pays == bool(others)
    assert (tried[2] in choose(tried, problem)) == joins


# The sets that are tried


def is_legal(row, layers):
    """Written the long way round."""
    skipped = [place for place, bit in enumerate(row) if bit]
    if not skipped or skipped[0] < 2:
        return False
    if skipped == list(range(skipped[0], 2 * layers)):
        return skipped[0] % 2 == 0
    runs = 1 + sum(b != a + 1 for a, b in pairwise(skipped))
    return skipped[-1] < 2 * layers - 2 and 2 * runs < MOST_STAGES


@given(st.integers(2, 7), st.integers(0, 2**32 - 1))
def test_what_is_tried_may_be_drafted_with(layers, seed):
    problem, rng = problem_of(layers, 0), np.random.default_rng(seed)
    legal = {*all_legal(layers)}
    assert {*exits(problem.costs)} <= legal
    for _ in range(20):
        one = random_set(problem.costs, rng)
        assert one in legal
        other = step(problem, one, rng)
        assert other is None or other in legal


def test_every_set_can_be_reached_by_steps():
    """But exits from others: they are tried first, and have steps among themselves."""
    problem, rng = problem_of(5, 0), np.random.default_rng(0)
    early = {*exits(problem.costs)}
    for begin, wanted in (
        ((4, 5), {*all_legal(5)} - early),
        (next(iter(early)), early),
    ):
        seen, queue = {begin}, [begin]
        while queue:
            one = queue.pop()
            for _ in range(300):
                other = step(problem, one, rng)
                if other is not None and other not in seen:
                    seen.add(other)
                    queue.append(other)
        assert seen == wanted
