"""Truncations by the whole distribution, against their definitions a token at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from draws import LARGE, SMALL, chi_squared_fits
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from edgespec.runtime.sampling.filters import near_best, survivors, typical, without_top_choices
from edgespec.runtime.sampling.noise import Noise, gumbel
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.sampler import Sampler

NEVER = np.float32(-1e30)  # what a bias of minus infinity makes of a logit


def probabilities(row):
    weights = [math.exp(float(logit) - float(max(row))) for logit in row]
    return [weight / math.fsum(weights) for weight in weights]


def kept_by_definition(row, options, excludes):
    """What llama.cpp's samplers keep, one after the other, with top-p and min-p as here."""
    ids = list(range(len(row)))

    def shares(temperature=1.0):
        return dict(zip(ids, probabilities([row[n] / temperature for n in ids]), strict=True))

    if options.top_n_sigma:
        known = [float(logit) for logit in row if logit > -1e29]
        mean = math.fsum(known) / len(known)
        deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in known) / len(known))
        ids = [n for n in ids if row[n] >= max(known) - options.top_n_sigma * deviation]
    if options.top_k:
        border = sorted((row[n] for n in ids), reverse=True)[: options.top_k][-1]
        ids = [n for n in ids if row[n] >= border]
    if options.typical_p < 1:
        p = shares()
        surprise = {n: -math.log(p[n]) if p[n] else math.inf for n in ids}
        entropy = math.fsum(p[n] * surprise[n] for n in ids if p[n])
        mass, kept = 0.0, []
        for n in sorted(ids, key=lambda n: abs(surprise[n] - entropy)):
            kept.append(n)
            mass += p[n]
            if mass > options.typical_p:
                break
        ids = sorted(kept)
    if options.top_p < 1:
        p = shares(options.temperature)
        mass, kept = 0.0, []
        for n in sorted(ids, key=lambda n: -row[n]):
            if kept and mass >= options.top_p:
                break
            kept.append(n)
            mass += p[n]
        ids = sorted(kept)
    if options.min_p:
        p = shares(options.temperature)
        ids = [n for n in ids if p[n] >= options.min_p * max(p.values())]
    if excludes and options.xtc_threshold <= 0.5:
        p = shares()
        above = sorted((n for n in ids if p[n] >= options.xtc_threshold), key=lambda n: -row[n])
        ids = [n for n in ids if n not in above[:-1]]
    return ids


FILTERS = [
    {"typical_p": 0.5},
    {"typical_p": 0.95, "top_k": 20},
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 0.3, "top_p": 0.7},
    {"xtc_threshold": 0.05},
    {"xtc_threshold": 0.0, "top_k": 7},
    {"xtc_threshold": 0.6},
    {"top_n_sigma": 2.0, "top_k": 30, "typical_p": 0.9, "top_p": 0.8, "min_p": 0.02},
    {"typical_p": 0.4, "min_p": 0.3, "xtc_threshold": 0.02},
]


@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 120),
    scale=st.sampled_from([0.1, 1.0, 4.0]),
    how=st.sampled_from(FILTERS),
    excludes=st.booleans(),
    never=st.booleans(),
)
def test_what_survives_is_what_the_definitions_keep(seed, size, scale, how, excludes, never):
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(size) * scale).astype(np.float32)
    if never:
        row[rng.random(size) < 0.3] = NEVER
        row[rng.integers(size)] = 1.0
    options = SamplingOptions(temperature=0.8, **how)
    found = survivors(row, options, excludes)
    assert found.tolist() == kept_by_definition(row, options, excludes)


@pytest.mark.parametrize("mass", [0.05, 0.3, 0.8, 0.99])
def test_typical_tokens_are_those_of_transformers(mass):
    rng = np.random.default_rng(2)
    for scale in (0.3, 2.0, 5.0):
        row = (rng.standard_normal(LARGE) * scale).astype(np.float32)
        scores = torch.from_numpy(row.astype(np.float64))[None]
        kept = torch.isfinite(hf.TypicalLogitsWarper(mass)(None, scores)[0]).nonzero().ravel()
        assert typical(row, mass).tolist() == kept.tolist()


def test_of_no_probability_the_most_typical_token_is_left():
    row = np.array([3.0, 2.9, 0.0, -1.0], np.float32)
    assert typical(row, 0).tolist() == [1]
    assert typical(row[:1], 0).tolist() == [0]


def test_a_row_of_tokens_that_may_not_be_chosen_has_a_best_one():
    row = np.full(5, NEVER)
    assert near_best(row, 1.0).tolist() == [0, 1, 2, 3, 4]


def test_of_equal_top_choices_one_stays():
    row = np.log(np.array([0.3, 0.3, 0.3, 0.1], np.float32))
    assert without_top_choices(row, 0.2).tolist() == [2, 3]


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize(
    "how", [*FILTERS[:5], FILTERS[7], {"xtc_probability": 0.5, "top_p": 0.9}], ids=str
)
def test_the_choice_is_what_noise_for_every_survivor_gives(size, how):
    options = SamplingOptions(temperature=0.9, seed=4, **{"xtc_probability": 0.5, **how})
    rng = np.random.default_rng(3)
    sampler = Sampler(options, size)
    coins = set()
    for position in range(8):
        row = (rng.standard_normal(size) * 3).astype(np.float32)
        coins.add(excludes := Noise(4, size).coin(position) <= 0.5)
        kept = survivors(row, options, excludes)
        scores = row[kept].astype(np.float64) / 0.9 + gumbel(4, position, kept)
        assert sampler.choose(row, position) == kept[scores.argmax()]
    assert coins == {True, False}


def test_top_choices_are_left_out_as_often_as_is_asked_for():
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    options = SamplingOptions(temperature=1.0, xtc_probability=0.4, seed=3)
    sampler = Sampler(options, 4)
    found = np.bincount([sampler.choose(row, t) for t in range(4000)], minlength=4)
    left = np.array([0, 0, 0.75, 0.25])
    assert chi_squared_fits(found, 4000 * (0.6 * np.exp(row) + 0.4 * left))


def test_a_coin_belongs_to_its_position_and_seed():
    coins = [Noise(1, 10).coin(position) for position in range(2000)]
    assert coins == [Noise(1, 99).coin(position) for position in range(2000)]
    assert coins != [Noise(2, 10).coin(position) for position in range(2000)]
    assert 0 <= min(coins) < 0.01
    assert 0.99 < max(coins) < 1
    assert abs(np.mean(coins) - 0.5) < 0.02


def test_greedy_text_is_not_truncated():
    row = np.array([0.0, 5.0, 4.9], np.float32)
    how = {"xtc_probability": 1.0, "typical_p": 0.1, "top_n_sigma": 0.1, "mirostat": 2}
    assert Sampler(SamplingOptions(**how), 3).choose(row, 0) == 1
