"""Tests of the choice of a token, exact against definitions, statistical where random."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from draws import LARGE, SMALL, chi_squared_fits
from transformers.generation import logits_process as hf

from edgespec.errors import DeviceError, InputError
from edgespec.runtime.sampling.noise import gumbel
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.penalties import Penalties
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.sampling.truncation import Nucleus


def exact_distribution(row, options, context):
    """The distribution by transformers' processors, [V] float64."""
    scores = torch.from_numpy(row.astype(np.float64))[None]
    ids = torch.tensor([context])
    if options.repetition_penalty != 1:
        scores = hf.RepetitionPenaltyLogitsProcessor(options.repetition_penalty)(ids, scores)
    scores = hf.TemperatureLogitsWarper(float(options.temperature))(ids, scores)
    if options.top_k:
        scores = hf.TopKLogitsWarper(options.top_k)(ids, scores)
    if options.top_p < 1:
        scores = hf.TopPLogitsWarper(options.top_p)(ids, scores)
    if options.min_p:
        scores = hf.MinPLogitsWarper(options.min_p)(ids, scores)
    return scores.softmax(-1)[0].numpy()


def choose(sampler, row, position, context):
    penalties = Penalties(sampler.options, sampler.vocab_size, context, {})
    return sampler.choose(penalties.penalized(row), position)


COMBINATIONS = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.5, "top_k": 5},
    {"temperature": 0.8, "top_p": 0.8},
    {"temperature": 1.2, "min_p": 0.1},
    {"temperature": 1.0, "repetition_penalty": 1.8},
    {"temperature": 1.3, "top_k": 9, "top_p": 0.85, "min_p": 0.08, "repetition_penalty": 0.7},
]
combinations = pytest.mark.parametrize("fields", COMBINATIONS, ids=str)
CONTEXT = [0, 3, 3, 5, 8, 5]


@combinations
def test_choices_over_seeds_have_the_exact_distribution(fields):
    row = (np.random.default_rng(1).standard_normal(14) * 1.5).astype(np.float32)
    draws = 4000
    options = SamplingOptions(**fields, seed=0)
    exact = exact_distribution(row, options, CONTEXT)
    counts = np.zeros(row.size)
    for seed in range(draws):
        sampler = Sampler(SamplingOptions(**fields, seed=seed), row.size)
        counts[choose(sampler, row, 6, CONTEXT)] += 1
    assert not counts[exact == 0].any()
    likely = exact * draws >= 5
    grouped = [*counts[likely], counts[~likely].sum()], [*exact[likely], exact[~likely].sum()]
    observed = np.array(grouped[0])
    expected = np.array(grouped[1]) * draws
    if expected[-1] < 5:  # too rare for a class of its own
        observed = np.append(observed[:-2], observed[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    assert chi_squared_fits(observed, expected)


@combinations
def test_choices_over_positions_have_the_exact_distribution(fields):
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    sampler = Sampler(SamplingOptions(**fields, seed=11), 4)
    exact = exact_distribution(row, sampler.options, [0])
    counts = np.bincount([choose(sampler, row, t, [0]) for t in range(4000)], minlength=4)
    assert not counts[exact == 0].any()
    if np.count_nonzero(exact) > 1:
        assert chi_squared_fits(counts[exact > 0], exact[exact > 0] * 4000)


def survivors(row, options):
    """Ids that the truncation keeps, by its definition; ties by the lowest id."""
    order = np.lexsort((np.arange(row.size), -row))
    scaled = row[order].astype(np.float64) / options.temperature
    keep = np.ones(row.size, dtype=bool)
    if options.top_k:
        keep &= scaled >= scaled[min(options.top_k, row.size) - 1]
    if options.top_p < 1:
        mass = np.where(keep, np.exp(scaled - scaled[0]), 0)
        keep &= mass.cumsum() - mass < options.top_p * mass.sum()
    if options.min_p:
        keep &= scaled >= scaled[0] + math.log(options.min_p)
    return np.sort(order[keep])


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("kind", ["flat", "nearly flat", "spread", "ties", "peaked"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"top_k": 40},
        {"top_k": 5000},
        {"min_p": 0.001},
        {"min_p": 0.3},
        {"top_p": 0.3},
        {"top_p": 0.95},
        {"top_p": 0.95, "min_p": 0.05},
        {"top_p": 0.1, "min_p": 0.5},
        {"top_k": 9000, "top_p": 0.8},
        {"top_k": 9000, "top_p": 0.8, "min_p": 0.02},
        {"top_k": 30, "top_p": 0.9, "min_p": 0.1},
    ],
    ids=str,
)
def test_the_choice_is_what_noise_for_every_survivor_gives(kind, fields, size):
    """On all code paths: all tokens, direct, short list, and a nucleus too wide to be listed."""
    rng = np.random.default_rng(3)
    for position in range(12):
        plain = rng.standard_normal(size)
        row = {
            "flat": np.zeros(size),
            "nearly flat": plain * 0.5,
            "spread": plain * 3,
            "ties": np.round(plain * 2) / 2,
            "peaked": plain * 12,
        }[kind].astype(np.float32)
        sampler = Sampler(SamplingOptions(temperature=0.9, seed=4, **fields), size)
        kept = survivors(row, sampler.options)
        scores = row[kept].astype(np.float64) / 0.9 + gumbel(4, position, kept)
        assert sampler.choose(row, position) == kept[scores.argmax()]


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("temperature", [1e-6, 1e6])
def test_extreme_temperatures_keep_what_survives(size, temperature):
    rng = np.random.default_rng(8)
    options = SamplingOptions(temperature=temperature, top_k=size - 9, top_p=0.9, min_p=0.9, seed=7)
    sampler = Sampler(options, size)
    for position in range(12):
        row = rng.standard_normal(size).astype(np.float32)
        kept = survivors(row, options)
        scores = row[kept].astype(np.float64) / temperature + gumbel(7, position, kept)
        assert sampler.choose(row, position) == kept[scores.argmax()]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_nucleus_that_excludes_what_noise_favours(size):
    """Half of the tokens have all the probability, but noise favours any token."""
    rng = np.random.default_rng(6)
    outside = 0
    for position in range(300):
        row = np.where(np.arange(size) < size // 2, 0.0, -0.5)[rng.permutation(size)]
        row = row.astype(np.float32)
        for fields in ({"top_p": 0.3}, {"top_p": 0.3, "min_p": 0.9}):
            sampler = Sampler(SamplingOptions(temperature=1.0, seed=5, **fields), size)
            kept = survivors(row, sampler.options)
            noise = row + gumbel(5, position, np.arange(size))
            assert sampler.choose(row, position) == kept[noise[kept].argmax()]
            favourites = np.argsort(-noise)[:8]
            outside += not np.isin(favourites, kept).any()
    assert outside  # so that more contenders had to be called


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize(
    "fields", [{"top_p": 0.005}, {"top_p": 0.5, "min_p": 1}, {"top_p": 0.5, "min_p": 0.9}], ids=str
)
def test_of_a_flat_row_few_are_tried_that_the_truncation_excludes(size, fields, monkeypatch):
    """In a flat row, noise may favour any token."""
    row = np.random.default_rng(9).standard_normal(size).astype(np.float32)
    options = SamplingOptions(temperature=20.0, seed=5, **fields)
    sampler = Sampler(options, size)
    tried = []
    asked = []
    holds = Nucleus.holds
    noise_of = sampler.noise.for_tokens
    monkeypatch.setattr(Nucleus, "holds", lambda *args: tried.append(1) or holds(*args))
    sampler.noise.for_tokens = lambda place, ids: asked.append(ids.size) or noise_of(place, ids)
    kept = survivors(row, options)
    for position in range(4):
        tried.clear()
        asked.clear()
        scores = row[kept].astype(np.float64) / 20 + gumbel(5, position, kept)
        assert sampler.choose(row, position) == kept[scores.argmax()]
        assert len(tried) < 2 * math.log2(size)
        assert sum(asked) < 2 * LARGE


@pytest.mark.parametrize("size", [1, SMALL, LARGE])
@pytest.mark.parametrize("fields", [{}, {"top_k": 30}, {"top_k": 9000, "min_p": 0.1}], ids=str)
def test_a_nucleus_of_no_probability_is_the_likeliest_token(size, fields):
    rng = np.random.default_rng(4)
    plain = rng.standard_normal(size)
    for each in (plain * 3, np.round(plain), np.zeros(size)):
        row = each.astype(np.float32)
        sampler = Sampler(SamplingOptions(temperature=1.5, top_p=0, seed=2, **fields), size)
        for position in range(4):
            assert sampler.choose(row, position) == row.argmax()


def test_greedy_takes_the_lowest_id_of_the_best():
    for size in (5, LARGE):
        row = np.zeros(size, dtype=np.float32)
        row[[2, size - 1]] = 1
        sampler = Sampler(SamplingOptions(), size)
        assert sampler.choose(row, 0) == 2


def test_penalty_is_transformers_for_greedy_too_and_counts_a_token_once():
    rng = np.random.default_rng(5)
    for penalty in (0.5, 1.3, 2.0):
        sampler = Sampler(SamplingOptions(repetition_penalty=penalty), 30)
        processor = hf.RepetitionPenaltyLogitsProcessor(penalty)
        for _ in range(30):
            row = rng.standard_normal(30).astype(np.float32)
            context = rng.integers(0, 30, 12).tolist()
            expected = processor(torch.tensor([context]), torch.from_numpy(row)[None])[0].numpy()
            assert choose(sampler, row, 12, context) == expected.argmax()
            penalized = Penalties(sampler.options, 30, context, {}).penalized(row)
            np.testing.assert_allclose(penalized, expected, rtol=1e-6)


def test_the_logits_given_are_never_changed():
    row = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    row.setflags(write=False)
    for fields in COMBINATIONS:
        choose(Sampler(SamplingOptions(**fields, seed=1), 100), row, 6, CONTEXT)


@pytest.mark.parametrize("fields", [{}, *COMBINATIONS], ids=str)
def test_padding_of_the_vocabulary_is_never_chosen(fields):
    padded = np.concatenate((np.zeros(10), np.full(22, 50.0))).astype(np.float32)
    sampler = Sampler(SamplingOptions(**fields, seed=2), 10)
    exact = Sampler(SamplingOptions(**fields, seed=2), 10)
    for position in range(50):
        context = [*CONTEXT, 9]
        chosen = choose(sampler, padded, position, context)
        assert chosen < 10
        # Target and draft may be padded differently: same noise, same choice.
        assert chosen == choose(exact, padded[:10], position, context)


@pytest.mark.parametrize(("size", "known"), [(2, 5), (LARGE, 2 * LARGE)])
def test_a_tokenizer_may_know_more_ids_than_the_model(size, known):
    row = np.zeros(size, dtype=np.float32)
    for fields in ({}, *COMBINATIONS):
        more = Sampler(SamplingOptions(**fields, seed=2), known)
        exact = Sampler(SamplingOptions(**fields, seed=2), size)
        for position in range(3):
            expected = choose(exact, row, position, [0])
            assert choose(more, row, position, [0, known - 1]) == expected


# Options and faults


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", value) for value in (-1, math.nan, 2e6, 1e-9, "0.8", True, None)),
        *(("top_k", value) for value in (-1, 1.5, math.nan, None)),
        *(("top_p", value) for value in (-0.1, 1.01, math.nan, "1")),
        *(("min_p", value) for value in (-0.1, 1.01, math.nan)),
        *(("repetition_penalty", value) for value in (0, -1, math.nan, math.inf)),
        *(("presence_penalty", value) for value in (2.1, math.nan, True)),
        *(("frequency_penalty", value) for value in (-2.1, "1")),
        *(("repeat_last_n", value) for value in (-2, 1.5)),
        *(("seed", value) for value in (-1, 1 << 64, 1.0, True)),
    ],
)
def test_options_outside_their_range_are_refused_by_name_and_value(field, value):
    with pytest.raises(InputError, match=f"{field} is {value!r}: give "):
        SamplingOptions(**{field: value})


def test_a_seed_is_drawn_and_reported():
    seeds = {Sampler(SamplingOptions(temperature=1.0), 5).seed for _ in range(4)}
    assert len(seeds) > 1
    drawn = Sampler(SamplingOptions(temperature=1.0), 500)
    again = Sampler(SamplingOptions(temperature=1.0, seed=drawn.seed), 500)
    row = np.zeros(500, dtype=np.float32)
    assert [drawn.choose(row, t) for t in range(9)] == [again.choose(row, t) for t in range(9)]
    assert Sampler(SamplingOptions(seed=0), 5).seed == 0


@pytest.mark.parametrize("fault", [math.nan, math.inf])
@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}])
def test_broken_logits_are_a_fault_not_a_token(fields, fault):
    row = np.zeros(30, dtype=np.float32)
    row[17] = fault
    sampler = Sampler(SamplingOptions(**fields, seed=0), 30)
    with pytest.raises(DeviceError, match=str(fault)):
        sampler.choose(row, 0)
