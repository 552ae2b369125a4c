"""The search for skip sets on made-up models: costs, space, and what it finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.export.skip_costs import (
    CHAINS,
    Agreements,
    PassCosts,
    StageTimes,
    as_bits,
    probe_cuts,
    score,
    tokens_per_round,
)
from edgespec.export.skip_model import DamageModel
from edgespec.export.skip_search import MOST_SETS, Problem, choose, ranked, search
from edgespec.export.skip_space import SkipSpace
from edgespec.export.skips import MOST_STAGES, skip_cuts

ROWS = (1, 2, 4, 8, 16)
GROWTH = np.array([1, 1.05, 1.2, 1.5, 2.5])
CALL, HOST = 2e-5, 1e-4


def costs_of(layers):
    """An MLP costs two attentions, the head three."""
    one = np.append(np.tile([1.0, 2.0], layers), 3.0) * 1e-3
    return PassCosts(ROWS, np.outer(GROWTH, one), CALL, HOST)


def problem_of(layers, seed):
    """Damages that differ much from sublayer to sublayer, and pairs that belong together.

    Sampled text is harder than greedy text.
    """
    rng = np.random.default_rng(seed)
    damage = rng.gamma(0.7, 1 / layers, 2 * layers)
    pairs = np.triu(rng.normal(0, 0.01, (2 * layers, 2 * layers)), 1)
    luck = rng.random((4, 112))

    def evaluate(skipped):
        x = as_bits([skipped], layers)[0].astype(float)
        agreement = np.exp(-max(x @ damage + x @ pairs @ x, 0))
        return Agreements(list(luck[:2] < agreement**0.8), list(luck[2:] < agreement**1.2))

    return Problem(costs_of(layers), "any", evaluate)


def best_of_random(problem, count, seed):
    sets = SkipSpace(problem.costs.layers).random(np.random.default_rng(seed), count)
    return ranked(problem.trial(tuple(map(int, np.flatnonzero(row)))) for row in sets)[0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layers", [8, 14])
def test_the_search_is_at_least_as_good_as_random_sets(layers, seed):
    problem = problem_of(layers, seed)
    found = search(problem, 40, seed)
    assert len(found) == 40
    random = best_of_random(problem, 40, seed + 100)
    assert found[0].score.tokens_per_second >= random.score.tokens_per_second
    exits = SkipSpace(layers).exits
    best_exit = ranked(problem.trial(tuple(map(int, np.flatnonzero(row)))) for row in exits)[0]
    assert found[0].score.tokens_per_second >= best_exit.score.tokens_per_second


@pytest.mark.parametrize("seed", range(3))
def test_the_search_finds_the_best_of_all_sets_or_nearly(seed):
    layers = 6
    problem = problem_of(layers, seed)
    space = SkipSpace(layers)
    every = np.array(list(np.ndindex((2,) * (2 * layers - 4))), np.bool_)
    every = np.vstack([np.pad(every, ((0, 0), (2, 2))), space.exits])
    every = every[space.valid(every)]
    assert len(every) > 150
    best = ranked(problem.trial(tuple(map(int, np.flatnonzero(row)))) for row in every)[0]
    found = search(problem, 40, seed)[0]
    assert found.score.tokens_per_second >= 0.99 * best.score.tokens_per_second


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
    problem = problem_of(layers, seed)
    tried = search(problem, 40, seed)
    for one in tried:
        assert min(one.skipped) >= 2
        assert max(one.skipped) < 2 * layers - 2 or problem.is_exit(one)
        assert len(skip_cuts([one.skipped], layers)) < MOST_STAGES
    chosen = choose(tried, problem)
    assert chosen[0] is tried[0]
    assert 2 <= len(chosen) <= (MOST_SETS if chosen[0].score.pays else 2)
    cuts = skip_cuts([one.skipped for one in chosen], layers)
    assert len(cuts) < MOST_STAGES
    # An early exit is among them wherever one fits beside the best.
    exits = [one for one in tried if problem.is_exit(one)]
    fitting = len(skip_cuts([tried[0].skipped, exits[0].skipped], layers)) < MOST_STAGES
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


# The space


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
def test_the_space_holds_what_may_be_drafted_with(layers, seed):
    space, rng = SkipSpace(layers), np.random.default_rng(seed)
    anything = rng.random((50, 2 * layers)) < rng.random()
    anything = np.vstack([anything, space.exits])
    assert space.valid(anything).tolist() == [is_legal(row, layers) for row in anything]
    for row in space.random(rng, 20):
        assert is_legal(row, layers)
        for other in space.neighbours(row):
            assert is_legal(other, layers)


def test_every_set_can_be_reached_by_steps():
    space = SkipSpace(5)
    seen, queue = set(), [space.random(np.random.default_rng(0), 1)[0]]
    while queue:
        for other in space.neighbours(queue.pop()):
            if other.tobytes() not in seen:
                seen.add(other.tobytes())
                queue.append(other)
    inner = np.array(list(np.ndindex((2,) * 6)), np.bool_)
    inner = space.valid(np.pad(inner, ((0, 0), (2, 2))))
    assert len(seen) == inner.sum() + len(space.exits)


# Costs


def round_by_hand(costs, skipped, chain, cuts):
    """Stage by stage."""
    width = 2 * costs.layers + 1
    borders = sorted({0, width} | set(cuts) | skip_cuts([skipped], costs.layers))
    stages = list(pairwise(borders))
    level = next(index for index, rows in enumerate(ROWS) if rows >= chain + 1)

    def run(parts, index):
        return sum(costs.sublayers[index, a:b].sum() + costs.call for a, b in parts)

    leading = [stage for stage in stages if stage[1] <= min(skipped)]
    drafted = [stage for stage in stages if stage[0] not in skipped]
    rest = [stage for stage in stages if stage not in leading]
    drafting = chain * (run(drafted, 0) + costs.host)
    return drafting + run(leading, 0) + run(rest, level) + costs.host


@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_a_round_costs_what_its_stages_cost(layers, seed):
    rng = np.random.default_rng(seed)
    costs = replace(costs_of(layers), sublayers=rng.random((len(ROWS), 2 * layers + 1)))
    cuts = set(rng.integers(1, 2 * layers + 1, 2).tolist())
    bits = SkipSpace(layers).random(rng, 5)
    found = costs.rounds(bits, cuts)
    for row, seconds in zip(bits, found, strict=True):
        skipped = np.flatnonzero(row).tolist()
        expected = [round_by_hand(costs, skipped, chain, cuts) for chain in CHAINS]
        assert seconds == pytest.approx(expected)


def times_of(costs, cuts):
    width = 2 * costs.layers + 1
    borders = (0, *cuts, width)
    stages = [costs.sublayers[:, a:b].sum(1) + costs.call for a, b in pairwise(borders)]
    return StageTimes(borders, ROWS, np.array(stages).T, costs.host)


@pytest.mark.parametrize("layers", [2, 3, 4, 9])
def test_sublayers_are_told_apart_by_the_probe(layers):
    costs = costs_of(layers)
    costs.sublayers[:, 0] += 5e-4  # the embedding
    found = PassCosts.from_probe(times_of(costs, probe_cuts(layers)))
    # Of fewer than four layers nothing tells what a cut costs: it goes to the sublayers.
    slack = 0 if layers >= 4 else 1.5 * CALL
    assert found.call == pytest.approx(CALL if layers >= 4 else 0)
    np.testing.assert_allclose(found.sublayers, costs.sublayers, atol=slack + 1e-9)
    assert found.plain(3) == pytest.approx(costs.plain(3), abs=2 * layers * slack + 1e-9)


@given(st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_whatever_is_measured_nothing_takes_less_than_no_time(layers, seed):
    """As it would seem if clocks were taken at their word."""
    rng = np.random.default_rng(seed)

    def measured(cuts):
        borders = (0, *cuts, 2 * layers + 1)
        seconds = np.sort(rng.random((len(ROWS), len(borders) - 1)), axis=0)
        return StageTimes(borders, ROWS, seconds, HOST)

    found = PassCosts.from_probe(measured(probe_cuts(layers)))
    assert found.call >= 0
    assert (found.sublayers > 0).all()
    assert (found.refined(measured([3])).sublayers >= 0).all()


def test_measured_stages_replace_what_was_expected_of_them():
    expected, real = costs_of(6), costs_of(6)
    real.sublayers[:] *= np.linspace(0.5, 2, 13)
    cuts = [3, 7, 12]
    found = expected.refined(times_of(real, cuts))
    skipped = [tuple(range(3, 7)), tuple(range(7, 12))]
    bits = as_bits(skipped, 6)
    np.testing.assert_allclose(found.rounds(bits, cuts), real.rounds(bits, cuts))
    assert found.plain(3) == pytest.approx(real.plain(3))


def test_rounds_are_counted_along_the_text():
    agreed = np.array([1, 1, 0, 0, 1, 1, 1, 1, 0, 1], np.bool_)
    # Chains of 2: two and a free one, none, none again… by hand: 3 + 1 + 3 + 2 tokens in 4 rounds.
    starts = [(0, 2), (3, 0), (4, 2), (7, 1)]
    expected = sum(accepted + 1 for _, accepted in starts) / len(starts)
    assert tokens_per_round([agreed], 2) == pytest.approx(expected)
    assert tokens_per_round([agreed, agreed], 2) == pytest.approx(expected)
    assert tokens_per_round([agreed[:2]], 2) == 3.0
    assert tokens_per_round([agreed[:1]], 2) == 1.0  # no chain fits


@given(st.floats(0.05, 0.95), st.integers(0, 1000))
def test_rounds_by_chance(share, seed):
    agreed = np.random.default_rng(seed).random(40_000) < share
    for chain in (1, 3):
        expected = sum(share**power for power in range(chain + 1))
        assert tokens_per_round([agreed], chain) == pytest.approx(expected, rel=0.05)


def test_a_score_weighs_what_a_round_brings():
    costs, skipped = costs_of(8), tuple(range(4, 12))
    agreed = Agreements([np.ones(200, np.bool_)], [np.zeros(200, np.bool_)])
    cuts = len(skip_cuts([skipped], 8))
    found = score(skipped, agreed, costs, "some:engine")
    always, never = found.greedy, found.sampled
    bits = np.isin(np.arange(16), skipped)[None]
    seconds = costs.rounds(bits)[0]
    rates = (np.array(CHAINS) + 1) / seconds
    assert always.chain == CHAINS[int(rates.argmax())] > 1
    assert always.tokens_per_second == pytest.approx(rates.max(), rel=1e-4)
    assert (always.agreement, never.agreement) == (1.0, 0.0)
    assert never.chain == 1
    assert never.tokens_per_second == pytest.approx(1 / seconds[0], rel=1e-4)
    plain = costs.sublayers[0].sum() + (cuts + 1) * CALL + HOST
    assert found.plain_tokens_per_second == pytest.approx(1 / plain, rel=1e-4)
    assert found.draft_cost == pytest.approx(costs.draft(bits)[0] / plain, abs=1e-4)
    assert found.engine == "some:engine"
    assert found.speedup(sampled=False) > 1 > found.speedup(sampled=True)
    # A token of each kind.
    both = 1 / always.tokens_per_second + 1 / never.tokens_per_second
    assert found.tokens_per_second == pytest.approx(2 / both)
    # Other sets' cuts cost this one something too.
    assert score(skipped, agreed, costs, "", {3, 5}).tokens_per_second < found.tokens_per_second


# What sets do that were not tried


def test_damage_is_learned_from_a_few_sets():
    rng = np.random.default_rng(5)
    layers, damage = 10, rng.gamma(1, 0.05, 20)
    space = SkipSpace(layers)
    tried, others = space.random(rng, 60), space.random(rng, 200)
    model = DamageModel(tried, np.exp(-(tried @ damage)))
    expected = np.exp(-(others @ damage))
    error = np.abs(model.mean().agreement(others) - expected)
    assert error.mean() < 0.03
    samples = [model.sample(rng).agreement(others) for _ in range(20)]
    assert len({tuple(each) for each in samples}) == 20
    # Samples scatter around the mean, more where less is known.
    assert np.abs(np.mean(samples, 0) - expected).mean() < 0.05
    few = DamageModel(tried[:6], np.exp(-(tried[:6] @ damage)))
    scatter = np.std([few.sample(rng).agreement(others) for _ in range(20)], 0).mean()
    assert scatter > 2 * np.std(samples, 0).mean()


def test_pairs_that_do_not_add_up_are_learned():
    rng = np.random.default_rng(6)
    tried = SkipSpace(6).random(rng, 100)
    both = tried[:, 4] & tried[:, 5]
    model = DamageModel(tried, np.exp(-0.05 * tried.sum(1) - 0.8 * both))
    pairs = model.mean().pairs
    np.testing.assert_array_equal(pairs, pairs.T)
    assert pairs[4, 5] == pairs.max() > 0.1
