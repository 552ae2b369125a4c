"""Noise, truncation and choice: exact against definitions, statistical where random."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from edgespec.errors import DeviceError, InputError
from edgespec.runtime.noise import Noise, bits_reaching, gumbel, gumbel_of, noise_bits
from edgespec.runtime.sampling import Sampler, SamplingOptions
from edgespec.runtime.truncation import Nucleus, leaders

RNG_SEED = 20
SMALL = 3000  # the noise of the whole vocabulary is made at once
LARGE = 40_000  # above every threshold between direct and short-listed paths


def chi_squared_fits(observed, expected):
    """Whether a chi-squared statistic is below its 99.99 % quantile (Wilson and Hilferty, 1931)."""
    observed, expected = np.asarray(observed, float).ravel(), np.asarray(expected, float).ravel()
    assert expected.min() >= 5
    assert math.isclose(observed.sum(), expected.sum(), rel_tol=1e-9)
    freedom = observed.size - 1
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3
    return ((observed - expected) ** 2 / expected).sum() < quantile


def uniforms(seed, positions, tokens):
    rows = [noise_bits(seed, t, np.arange(tokens)) >> np.uint64(11) for t in range(positions)]
    return np.array(rows) * 2.0**-53


# Noise


def test_noise_is_splitmix64():
    """Reference outputs of the published generator (Steele, Lea and Flood) from its first state."""

    def splitmix64(state, count):
        out = []
        for _ in range(count):
            state = (state + 0x9E3779B97F4A7C15) % 2**64
            mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
            out.append(mixed ^ (mixed >> 31))
        return out

    assert splitmix64(1234567, 2) == [6457827717110365317, 3203168211198807973]
    for seed, position in ((0, 0), (7, 3), (2**64 - 1, 10**6)):
        key = splitmix64(splitmix64(seed, 1)[0] + position * 0x9E3779B97F4A7C15, 1)[0]
        assert noise_bits(seed, position, np.arange(5)).tolist() == splitmix64(key, 5)


def test_noise_depends_on_seed_position_and_token_alone():
    tokens = np.arange(LARGE)
    whole = gumbel(5, 9, tokens)
    assert whole.dtype == np.float64
    some = np.random.default_rng(0).integers(0, LARGE, 100)
    np.testing.assert_array_equal(gumbel(5, 9, some), whole[some])
    assert (whole != gumbel(5, 10, tokens)).all()
    assert (whole != gumbel(6, 9, tokens)).all()


@pytest.mark.parametrize("size", [1, SMALL, LARGE])
def test_noise_kept_for_a_vocabulary_is_the_same_noise(size):
    noise = Noise(5, size)
    assert noise.tabulated == (size <= SMALL)
    some = np.random.default_rng(0).integers(0, size, (2, 3))
    for position in (0, 3, 4, 1, 10**6, 63, 0):  # in any order, whatever else was made
        expected = gumbel(5, position, np.arange(size))
        np.testing.assert_array_equal(noise.of(position, some), expected[some])
        np.testing.assert_array_equal(gumbel_of(noise.bits(position)), expected)
        if noise.tabulated:
            np.testing.assert_array_equal(noise.of_all(position), expected)


@pytest.mark.parametrize("seed", [0, 1, 2, 12345, 2**64 - 1])
def test_noise_is_uniform_over_tokens_and_over_positions(seed):
    u = uniforms(seed, 200, 1000)
    counts = np.bincount((u.ravel() * 100).astype(int), minlength=100)
    assert chi_squared_fits(counts, np.full(100, u.size / 100))
    for line in (u[0], u[150], u[:, 0], u[:, 999]):
        counts = np.bincount((line * 10).astype(int), minlength=10)
        assert chi_squared_fits(counts, np.full(10, line.size / 10))


@pytest.mark.parametrize("lag", [1, 2, 64])
@pytest.mark.parametrize("axis", ["position", "token"])
def test_noise_is_independent_across_positions_and_tokens(axis, lag):
    u = uniforms(3, 300, 600)
    first, second = (u[:-lag], u[lag:]) if axis == "position" else (u[:, :-lag], u[:, lag:])
    joint = (first.ravel() * 12).astype(int) * 12 + (second.ravel() * 12).astype(int)
    assert chi_squared_fits(np.bincount(joint, minlength=144), np.full(144, joint.size / 144))


@pytest.mark.parametrize("other", [1, 2, 1 << 32])
def test_noise_is_independent_across_seeds(other):
    joint = (uniforms(0, 100, 500).ravel() * 12).astype(int) * 12
    joint += (uniforms(other, 100, 500).ravel() * 12).astype(int)
    assert chi_squared_fits(np.bincount(joint, minlength=144), np.full(144, joint.size / 144))


def test_noise_has_the_gumbel_distribution():
    noise = np.sort(np.concatenate([gumbel(1, t, np.arange(1000)) for t in range(100)]))
    edges = -np.log(-np.log(np.arange(1, 50) / 50))  # its quantiles
    counts = np.diff(np.searchsorted(noise, [-np.inf, *edges, np.inf]))
    assert chi_squared_fits(counts, np.full(50, noise.size / 50))


def test_noise_is_finite_for_all_bits():
    extremes = gumbel_of(np.array([0, 1, 1 << 11, 2**64 - 1], dtype=np.uint64))
    assert np.isfinite(extremes).all()
    assert (np.diff(extremes) >= 0).all()
    assert extremes[-1] > 36


@given(st.floats(-5, 40))
def test_no_bits_below_the_bound_reach_the_noise(noise):
    bound = bits_reaching(noise)
    if bound:
        assert gumbel_of(np.array([bound - 1], dtype=np.uint64))[0] < noise
    if -1 < noise < 20:  # and the bound is tight
        assert gumbel_of(np.array([bound], dtype=np.uint64))[0] > noise - 1e-3


# Truncation


def rows(size):
    """Random logits: plain, with many ties, nearly constant, constant, with masked tokens."""
    rng = np.random.default_rng(RNG_SEED)
    plain = rng.standard_normal(size) * 3
    masked = np.where(rng.random(size) < 0.5, -np.inf, plain)
    kinds = (plain, np.round(plain), np.round(plain / 5), np.zeros(size), masked)
    return [kind.astype(np.float32) for kind in kinds]


SIZES = [1, 2, 7, 63, 1000, LARGE + 17]


def largest(row, count):
    """The best `count` of the leaders, in order, ties by id."""
    found = leaders(row, count)
    return found[np.argsort(-row[found], kind="stable")[:count]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 4, 50, 64, 1024])
def test_the_largest_come_in_order_with_ties_by_id(size, count):
    for row in rows(size):
        expected = np.lexsort((np.arange(size), -row))[:count]
        np.testing.assert_array_equal(largest(row, count), expected)
        border = np.sort(row)[::-1][min(count, size) - 1]
        np.testing.assert_array_equal(leaders(row, count), np.flatnonzero(row >= border))


def test_ties_within_and_across_blocks_go_to_the_lowest_id():
    rng = np.random.default_rng(0)
    for _ in range(200):
        row = np.zeros(LARGE, dtype=np.float32)
        places = rng.choice(LARGE, 12, replace=False)
        # One block of strided neighbours holds several of the best.
        places[:4] = places[0] % 600 + np.arange(4) * (LARGE // 64)
        row[places] = rng.integers(1, 4, 12)
        for count in (1, 3, 8, 13):
            expected = np.lexsort((np.arange(LARGE), -row))[:count]
            np.testing.assert_array_equal(largest(row, count), expected)


def processed(row, *processors):
    scores = torch.from_numpy(row.astype(np.float64))[None]
    for processor in processors:
        scores = processor(None, scores)
    return scores[0].numpy()


def is_nucleus(ours, row, temperature, top_p, theirs):
    """Whether `ours` is transformers' set, with the lowest ids where its border cuts through ties.

    The sizes differ only where a set of the smaller size holds top_p up to float32 rounding.
    """
    order = np.lexsort((np.arange(row.size), -row))
    mass = torch.from_numpy(row[order].astype(float) / temperature).softmax(-1).cumsum(-1).numpy()
    sizes = sorted((ours.size, theirs.size))
    rounding = all(abs(mass[size - 1] - top_p) < 1e-6 for size in range(sizes[0], sizes[1]))
    lowest = np.array_equal(ours, np.sort(order[: ours.size]))
    return rounding and lowest


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_each_truncation_keeps_what_transformers_keeps(size, temperature):
    warm = hf.TemperatureLogitsWarper(temperature)
    for row in rows(size):
        for k in (1, 3, 40):
            theirs = np.flatnonzero(processed(row, warm, hf.TopKLogitsWarper(k)) > -np.inf)
            finite = leaders(row, k)
            np.testing.assert_array_equal(finite[row[finite] > -np.inf], theirs)
        for p in (0.1, 0.37, 0.9, 0.999):
            theirs = np.flatnonzero(processed(row, warm, hf.TopPLogitsWarper(p)) > -np.inf)
            ours = Nucleus(row, temperature, p).members(size)
            assert is_nucleus(ours, row, temperature, p, theirs)


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("size", SIZES[1:-1])
def test_a_nucleus_knows_each_member_and_says_when_it_is_too_wide(size, top_p):
    for row in rows(size):
        nucleus = Nucleus(row, 0.8, top_p)
        members = nucleus.members(size)
        order = np.lexsort((np.arange(size), -row))
        before = np.empty(size)
        weights = torch.from_numpy(row[order] / np.float64(0.8)).softmax(-1).numpy()
        before[order] = weights.cumsum() - weights
        clear = np.flatnonzero((abs(before - top_p) > 1e-5) & (row > -np.inf))
        held = [index for index in clear.tolist() if nucleus.holds(index)]
        assert held == np.intersect1d(members, clear).tolist()
        for most in {1, members.size // 2, members.size, members.size + 3} - {0}:
            found = nucleus.members(most)
            if found is not None:  # equal logits at the limit may be looked at too
                np.testing.assert_array_equal(found, members)
            assert found is not None or members.size > most


def test_top_p_between_equal_logits_keeps_the_lowest_ids():
    row = np.array([0, 2, 2, 2, 2, 0], dtype=np.float32)
    assert Nucleus(row, 1.0, 0.4).members(6).tolist() == [1, 2]
    flat = Nucleus(np.zeros(LARGE, dtype=np.float32), 1.0, 0.25)
    assert flat.members(LARGE).tolist() == list(range(LARGE // 4))
    assert flat.holds(LARGE // 4 - 1)
    assert not flat.holds(LARGE // 4)


# The choice


def exact_distribution(row, options, context):
    """By transformers' processors, [V] float64."""
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
        counts[sampler.choose(row, 6, CONTEXT)] += 1
    assert not counts[exact == 0].any()
    likely = exact * draws >= 5
    grouped = [*counts[likely], counts[~likely].sum()], [*exact[likely], exact[~likely].sum()]
    observed, expected = np.array(grouped[0]), np.array(grouped[1]) * draws
    if expected[-1] < 5:  # too rare for a class of its own
        observed = np.append(observed[:-2], observed[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    assert chi_squared_fits(observed, expected)


@combinations
def test_choices_over_positions_have_the_exact_distribution(fields):
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    sampler = Sampler(SamplingOptions(**fields, seed=11), 4)
    exact = exact_distribution(row, sampler.options, [0])
    counts = np.bincount([sampler.choose(row, t, [0]) for t in range(4000)], minlength=4)
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
    """By passes over all, direct, short-listed, or with a nucleus too wide to be listed."""
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
        assert sampler.choose(row, position, []) == kept[scores.argmax()]


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
        assert sampler.choose(row, position, []) == kept[scores.argmax()]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_nucleus_that_excludes_what_noise_favours(size):
    """Most contenders are outside: the likely half has all the mass, the noise is anywhere."""
    rng = np.random.default_rng(6)
    outside = 0
    for position in range(300):
        row = np.where(np.arange(size) < size // 2, 0.0, -0.5)[rng.permutation(size)]
        row = row.astype(np.float32)
        for fields in ({"top_p": 0.3}, {"top_p": 0.3, "min_p": 0.9}):
            sampler = Sampler(SamplingOptions(temperature=1.0, seed=5, **fields), size)
            kept = survivors(row, sampler.options)
            noise = row + gumbel(5, position, np.arange(size))
            assert sampler.choose(row, position, []) == kept[noise[kept].argmax()]
            favourites = np.argsort(-noise)[:8]
            outside += not np.isin(favourites, kept).any()
    assert outside  # so that more contenders had to be called


def test_greedy_takes_the_lowest_id_of_the_best():
    for size in (5, LARGE):
        row = np.zeros(size, dtype=np.float32)
        row[[2, size - 1]] = 1
        sampler = Sampler(SamplingOptions(), size)
        assert sampler.choose(row, 0, []) == 2


def test_penalty_is_transformers_for_greedy_too_and_counts_a_token_once():
    rng = np.random.default_rng(5)
    for penalty in (0.5, 1.3, 2.0):
        sampler = Sampler(SamplingOptions(repetition_penalty=penalty), 30)
        processor = hf.RepetitionPenaltyLogitsProcessor(penalty)
        for _ in range(30):
            row = rng.standard_normal(30).astype(np.float32)
            context = rng.integers(0, 30, 12).tolist()
            expected = processor(torch.tensor([context]), torch.from_numpy(row)[None])[0].numpy()
            assert sampler.choose(row, 12, context) == expected.argmax()
            seen = np.unique(context)
            penalized = sampler.penalized_values(row[seen])
            np.testing.assert_allclose(penalized, expected[seen], rtol=1e-6)


def test_the_logits_given_are_never_changed():
    row = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    row.setflags(write=False)
    for fields in COMBINATIONS:
        Sampler(SamplingOptions(**fields, seed=1), 100).choose(row, 6, CONTEXT)


@pytest.mark.parametrize("fields", [{}, *COMBINATIONS], ids=str)
def test_padding_of_the_vocabulary_is_never_chosen(fields):
    padded = np.concatenate((np.zeros(10), np.full(22, 50.0))).astype(np.float32)
    sampler = Sampler(SamplingOptions(**fields, seed=2), 10)
    exact = Sampler(SamplingOptions(**fields, seed=2), 10)
    for position in range(50):
        context = [*CONTEXT, 9]
        assert sampler.choose(padded, position, context) < 10
        # Target and draft may be padded differently: same noise, same choice.
        assert sampler.choose(padded, position, context) == exact.choose(
            padded[:10], position, context
        )


def test_a_tokenizer_may_know_more_ids_than_the_model():
    row = np.array([0.0, 1.0], dtype=np.float32)
    for fields in ({}, {"temperature": 1.0, "repetition_penalty": 1.2}):
        sampler = Sampler(SamplingOptions(**fields, seed=2), 5)
        assert sampler.choose(row, 0, [4]) in (0, 1)


def test_penalties_see_the_branch():
    row = np.array([3.0, 2.9], dtype=np.float32)
    sampler = Sampler(SamplingOptions(repetition_penalty=1.5), 2)
    assert sampler.choose(row, 1, [1]) == 0
    assert sampler.choose(row, 1, [0]) == 1


# Options and faults


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", value) for value in (-1, math.nan, 2e6, 1e-9, "0.8", True, None)),
        *(("top_k", value) for value in (-1, 1.5, math.nan, None)),
        *(("top_p", value) for value in (0, -0.1, 1.01, math.nan, "1")),
        *(("min_p", value) for value in (-0.1, 1.01, math.nan)),
        *(("repetition_penalty", value) for value in (0, -1, math.nan, math.inf)),
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
    assert [drawn.choose(row, t, []) for t in range(9)] == [
        again.choose(row, t, []) for t in range(9)
    ]
    assert Sampler(SamplingOptions(seed=0), 5).seed == 0


@pytest.mark.parametrize("fault", [math.nan, math.inf])
@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}])
def test_broken_logits_are_a_fault_not_a_token(fields, fault):
    row = np.zeros(30, dtype=np.float32)
    row[17] = fault
    sampler = Sampler(SamplingOptions(**fields, seed=0), 30)
    with pytest.raises(DeviceError, match=str(fault)):
        sampler.choose(row, 0, [])
