"""What rounds with skip sets cost and bring, on made-up models."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skips import CALL, GROWTH, HOST, ROWS, costs_of

from edgespec.bundle.sublayers import ATTENTION, INJECTION, MLP, Sublayer, Sublayers
from edgespec.export.skipping.costs import (
    CHAINS,
    Agreements,
    PassCosts,
    StageTimes,
    as_bits,
    probe_cuts,
    score,
    tokens_per_round,
)
from edgespec.export.skipping.search import random_set
from edgespec.export.skipping.sets import skip_cuts


def round_by_hand(costs, skipped, chain, cuts):
    """Stage by stage."""
    width = costs.layout.head + 1
    borders = sorted({0, width} | set(cuts) | skip_cuts([skipped], costs.layout))
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
    sets = [random_set(costs, rng) for _ in range(5)]
    found = costs.rounds(as_bits(sets, costs.layout), cuts)
    for skipped, seconds in zip(sets, found, strict=True):
        expected = [round_by_hand(costs, skipped, chain, cuts) for chain in CHAINS]
        assert seconds == pytest.approx(expected)


def times_of(costs, cuts):
    borders = (0, *cuts, costs.layout.head + 1)
    stages = [costs.sublayers[:, a:b].sum(1) + costs.call for a, b in pairwise(borders)]
    return StageTimes(borders, ROWS, np.array(stages).T, costs.host)


@pytest.mark.parametrize("layers", [2, 3, 4, 9])
def test_sublayers_are_told_apart_by_the_probe(layers):
    costs = costs_of(layers)
    costs.sublayers[:, 0] += 5e-4  # the embedding
    found = PassCosts.from_probe(times_of(costs, probe_cuts(costs.layout)), costs.layout)
    # Of fewer than four layers nothing tells what a cut costs: it goes to the sublayers.
    slack = 0 if layers >= 4 else 1.5 * CALL
    assert found.call == pytest.approx(CALL if layers >= 4 else 0)
    np.testing.assert_allclose(found.sublayers, costs.sublayers, atol=slack + 1e-9)
    assert found.plain(3) == pytest.approx(costs.plain(3), abs=2 * layers * slack + 1e-9)


def test_layers_may_have_more_than_two_sublayers():
    layout = Sublayers(
        Sublayer(layer, kind) for layer in range(6) for kind in (ATTENTION, MLP, INJECTION)
    )
    one = np.append(np.tile([1.0, 2.0, 0.3], 6), 3.0) * 1e-3
    costs = PassCosts(ROWS, layout, np.outer(GROWTH, one), CALL, HOST)
    assert probe_cuts(layout) == [3, 4, 5, 6, 18]
    found = PassCosts.from_probe(times_of(costs, probe_cuts(layout)), layout)
    assert found.call == pytest.approx(CALL)
    np.testing.assert_allclose(found.sublayers, costs.sublayers, atol=1e-9)


@given(st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_whatever_is_measured_nothing_takes_less_than_no_time(layers, seed):
    """As it would seem if clocks were taken at their word."""
    rng = np.random.default_rng(seed)

    def measured(cuts):
        borders = (0, *cuts, 2 * layers + 1)
        seconds = np.sort(rng.random((len(ROWS), len(borders) - 1)), axis=0)
        return StageTimes(borders, ROWS, seconds, HOST)

    layout = Sublayers.pairs(layers)
    found = PassCosts.from_probe(measured(probe_cuts(layout)), layout)
    assert found.call >= 0
    assert (found.sublayers > 0).all()
    assert (found.refined(measured([3])).sublayers >= 0).all()


def test_measured_stages_replace_what_was_expected_of_them():
    expected, real = costs_of(6), costs_of(6)
    real.sublayers[:] *= np.linspace(0.5, 2, 13)
    cuts = [3, 7, 12]
    found = expected.refined(times_of(real, cuts))
    skipped = [tuple(range(3, 7)), tuple(range(7, 12))]
    bits = as_bits(skipped, expected.layout)
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
    cuts = len(skip_cuts([skipped], costs.layout))
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
