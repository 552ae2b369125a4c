"""Tests of rankings: the target's rule on the tokens that the draft's graph picked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from candidates import candidates_of
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.drafters.acceptance import rank
from edgespec.runtime.sampling.noise import gumbel
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.sampler import Sampler

COMBINATIONS = [
    {},
    {"temperature": 1.0},
    {"temperature": 1e-6},
    {"temperature": 1.5, "top_k": 5},
    {"temperature": 1.0, "top_k": 2},
    {"temperature": 0.8, "top_p": 0.8},
    {"temperature": 1.2, "min_p": 0.1},
    {"temperature": 1.3, "top_k": 9, "top_p": 0.85, "min_p": 0.08},
]


def rank_row(sampler, row, position=0, k=4, count=None):
    [ranking] = rank(sampler, candidates_of(row, count), position, k)
    return ranking


@given(
    st.sampled_from(COMBINATIONS),
    st.sampled_from([3, 20, 128]),
    st.integers(1, 20),
    st.integers(0, 2**32),
)
def test_a_ranking_begins_with_the_choice_and_is_distinct_and_ordered(fields, size, k, seed):
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(size) * rng.choice([0.3, 1.0, 5.0, 50.0])).astype(np.float32)
    sampler = Sampler(SamplingOptions(**fields, seed=seed), size)
    ranking = rank_row(sampler, row, 4, k)
    assert ranking.tokens[0] == sampler.choose(row, 4)
    assert len(set(ranking.tokens)) == len(ranking.tokens) == len(ranking.values) == min(k, size)
    assert all(0 < value <= 1 for value in ranking.values)
    assert sum(ranking.values) < 1 + 1e-5
    assert ranking.values == sorted(ranking.values, reverse=True)
    assert rank_row(sampler, row, 4, 1).tokens == ranking.tokens[:1]


def test_equal_scores_go_to_the_lowest_id():
    row = np.zeros(9, dtype=np.float32)
    row[[4, 7]] = 1
    assert rank_row(Sampler(SamplingOptions(), 9), row).tokens == [4, 7, 0, 1]
    half = Sampler(SamplingOptions(temperature=1.0, top_p=0.5, seed=1), 4)
    for position in range(50):
        ranking = rank_row(half, np.zeros(4, np.float32), position)
        assert set(ranking.tokens[:2]) == {0, 1}


def test_survivors_come_first_and_the_best_others_fill():
    row = np.array([5.0, 0.0, 4.9, 1.0, -1.0, 2.0], dtype=np.float32)
    sampler = Sampler(SamplingOptions(temperature=1.0, top_k=2, seed=0), 6)
    others = np.array([1, 3, 4, 5])
    for position in range(200):
        ranking = rank_row(sampler, row, position)
        assert set(ranking.tokens[:2]) == {0, 2}
        noisy = row[others] + gumbel(0, position, others)
        assert ranking.tokens[2:] == others[np.argsort(-noisy)][:2].tolist()


@pytest.mark.parametrize(
    ("fields", "survivors"),
    [
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_p": 0.7}, {0, 1}),
        ({"top_p": 0.701}, {0, 1, 2}),
        ({"min_p": 0.24}, {0, 1, 2, 3}),
        ({"min_p": 0.51}, {0, 1}),
        ({"top_k": 2, "top_p": 0.5}, {0}),  # of what top-k leaves: 4/7
        ({"top_k": 3, "top_p": 0.77}, {0, 1}),  # 7/9
        ({"top_k": 4, "top_p": 0.999, "min_p": 0.3}, {0, 1, 2}),
    ],
    ids=str,
)
def test_what_the_truncation_keeps(fields, survivors):
    row = np.log(np.array([0.4, 0.30001, 0.2, 0.1 - 1e-5], dtype=np.float32))
    sampler = Sampler(SamplingOptions(temperature=1.0, seed=3, **fields), 4)
    firsts = set()
    behind = 0
    for position in range(300):
        tokens = rank_row(sampler, row, position).tokens
        assert set(tokens[: len(survivors)]) == survivors
        firsts.add(tokens[0])
        noise = row + gumbel(3, position, np.arange(4))
        behind += int(noise.argmax()) not in survivors
    assert firsts == survivors
    assert behind or len(survivors) == 4  # the truncation did change something


def test_greedy_values_are_probabilities_by_the_normalizer():
    row = np.log(np.array([0.2, 0.5, 0.3], dtype=np.float32)) + 7
    sampler = Sampler(SamplingOptions(), 3)
    ranking = rank_row(sampler, row)
    assert ranking.tokens == [1, 2, 0]
    np.testing.assert_allclose(ranking.values, [0.5, 0.3, 0.2], rtol=1e-5)
    # The normalizer counts the tokens that are not among the candidates.
    ranking = rank_row(sampler, row, count=2)
    assert ranking.tokens == [1, 2]
    np.testing.assert_allclose(ranking.values, [0.5, 0.3], rtol=1e-5)


def test_sampled_values_are_the_lead_over_the_rivals_and_do_not_depend_on_the_width():
    row = np.random.default_rng(2).standard_normal(50).astype(np.float32)
    sampler = Sampler(SamplingOptions(temperature=1.0, seed=6), 50)
    leads = []
    values = []
    for position in range(100):
        noisy = np.sort(row.astype(np.float64) + gumbel(6, position, np.arange(50)))[::-1]
        ranking = rank_row(sampler, row, position, k=2)
        # Of two tokens, the odds are the exponential of the distance.
        odds = ranking.values[0] / ranking.values[1]
        assert math.isclose(odds, math.exp(noisy[0] - noisy[1]), rel_tol=1e-6)
        leads.append(noisy[0] - noisy[1])
        values.append(ranking.values[0])
        for width in (1, 4, 8):
            wide = rank_row(sampler, row, position, k=width)
            np.testing.assert_allclose(wide.values[:2], ranking.values[:width])
    assert np.corrcoef(leads, values)[0, 1] > 0.7


@pytest.mark.parametrize("fields", COMBINATIONS, ids=str)
def test_rows_do_not_touch_each_other(fields):
    logits = np.random.default_rng(4).standard_normal((5, 40)).astype(np.float32)
    sampler = Sampler(SamplingOptions(**fields, seed=1), 40)
    together = rank(sampler, candidates_of(logits, 16), 7, 3)
    assert together == [rank_row(sampler, row, 7, 3, 16) for row in logits]


@pytest.mark.parametrize("fields", COMBINATIONS, ids=str)
def test_the_candidates_given_are_never_changed(fields):
    candidates = candidates_of(np.random.default_rng(0).standard_normal((2, 30)))
    for array in (candidates.tokens, candidates.logits, candidates.normalizers):
        array.setflags(write=False)
    rank(Sampler(SamplingOptions(**fields, seed=1), 30), candidates, 6, 4)


@pytest.mark.parametrize("fields", COMBINATIONS, ids=str)
@pytest.mark.parametrize("count", [1, 2, 6])
def test_fewer_candidates_than_children_are_all_ranked(fields, count):
    row = np.random.default_rng(1).standard_normal(30).astype(np.float32)
    sampler = Sampler(SamplingOptions(**fields, seed=1), 30)
    ranking = rank_row(sampler, row, 3, 10, count)
    assert sorted(ranking.tokens) == sorted(candidates_of(row, count).tokens[0].tolist())


# Traps seen in other engines


def test_the_draft_ranks_after_the_temperature():
    """A draft equal to the target always ranks the target's choice first, at every temperature.

    It would not if its probabilities were taken before the temperature and the target's after.
    """
    rng = np.random.default_rng(8)
    hot = Sampler(SamplingOptions(temperature=2.5, seed=9), 40)
    untempered = Sampler(SamplingOptions(temperature=1.0, seed=9), 40)
    first_before_temperature = 0
    for position in range(300):
        row = (rng.standard_normal(40) * 2).astype(np.float32)
        chosen = hot.choose(row, position)
        assert rank_row(hot, row, position, k=1).tokens == [chosen]
        first_before_temperature += rank_row(untempered, row, position, k=1).tokens == [chosen]
    assert first_before_temperature < 250


def test_an_unlikely_choice_is_ranked_first():
    row = np.array([12.0] + [0.0] * 999, dtype=np.float32)
    sampler = Sampler(SamplingOptions(temperature=1.0, seed=1), 1000)
    unlikely = [t for t in range(2000) if sampler.choose(row, t) != 0]
    assert unlikely  # each with probability exp(-12)
    for position in unlikely:
        chosen = sampler.choose(row, position)
        assert rank_row(sampler, row, position, k=2).tokens == [chosen, 0]
