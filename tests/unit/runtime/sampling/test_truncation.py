"""Tests of largest logits and nuclei, against sorting and transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from draws import LARGE
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from transformers.generation import logits_process as hf

from edgespec.runtime.drafters.recycling import WIDTH
from edgespec.runtime.sampling.truncation import Nucleus, largest_indices, likeliest_tokens

RNG_SEED = 20
SIZES = [1, 2, 7, 63, 1000, LARGE + 17]


def rows(size):
    """Random logits: plain, with many ties, nearly constant, constant, with masked tokens."""
    rng = np.random.default_rng(RNG_SEED)
    plain = rng.standard_normal(size) * 3
    masked = np.where(rng.random(size) < 0.5, -np.inf, plain)
    kinds = (plain, np.round(plain), np.round(plain / 5), np.zeros(size), masked)
    return [kind.astype(np.float32) for kind in kinds]


def largest(row, count):
    """The best `count` of the largest logits, in order, ties by id."""
    found = largest_indices(row, count)
    return found[np.argsort(-row[found], kind="stable")[:count]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 4, 50, 64, 1024])
def test_the_largest_come_in_order_with_ties_by_id(size, count):
    for row in rows(size):
        expected = np.lexsort((np.arange(size), -row))[:count]
        np.testing.assert_array_equal(largest(row, count), expected)
        border = np.sort(row)[::-1][min(count, size) - 1]
        np.testing.assert_array_equal(largest_indices(row, count), np.flatnonzero(row >= border))


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
            finite = largest_indices(row, k)
            np.testing.assert_array_equal(finite[row[finite] > -np.inf], theirs)
        for p in (0.1, 0.37, 0.9, 0.999):
            theirs = np.flatnonzero(processed(row, warm, hf.TopPLogitsWarper(p)) > -np.inf)
            ours = Nucleus(row, temperature, p).members(np.arange(size))
            assert is_nucleus(ours, row, temperature, p, theirs)


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("size", SIZES[1:-1])
def test_a_nucleus_knows_each_member_and_says_when_it_is_too_wide(size, top_p):
    for row in rows(size):
        nucleus = Nucleus(row, 0.8, top_p)
        members = nucleus.members(np.arange(size))
        order = np.lexsort((np.arange(size), -row))
        before = np.empty(size)
        weights = torch.from_numpy(row[order] / np.float64(0.8)).softmax(-1).numpy()
        before[order] = weights.cumsum() - weights
        clear = np.flatnonzero((abs(before - top_p) > 1e-5) & (row > -np.inf))
        held = [index for index in clear.tolist() if nucleus.holds(index)]
        assert held == np.intersect1d(members, clear).tolist()
        for most in {1, members.size // 2, members.size, members.size + 3} - {0}:
            found = nucleus.members(largest_indices(row, most))
            if found is not None:  # equal logits at the limit may be looked at too
                np.testing.assert_array_equal(found, members)
            assert found is not None or members.size > most


def test_top_p_between_equal_logits_keeps_the_lowest_ids():
    row = np.array([0, 2, 2, 2, 2, 0], dtype=np.float32)
    assert Nucleus(row, 1.0, 0.4).members(np.arange(6)).tolist() == [1, 2]
    flat = Nucleus(np.zeros(LARGE, dtype=np.float32), 1.0, 0.25)
    assert flat.members(np.arange(LARGE)).tolist() == list(range(LARGE // 4))
    assert flat.holds(LARGE // 4 - 1)
    assert not flat.holds(LARGE // 4)
    assert np.flatnonzero(Nucleus(row, 1.0, 0.4).before(2)).tolist() == [1]
    assert np.flatnonzero(Nucleus(row, 1.0, 0.4).before(5)).tolist() == [0, 1, 2, 3, 4]


def sorted_ids(logits, vocab_size, count):
    return np.argsort(-logits[:, :vocab_size], axis=1, kind="stable")[:, :count]


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 400)),
        elements=st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, np.inf]),
    ),
    st.data(),
)
def test_the_likeliest_are_a_stable_sorts(logits, data):
    vocab_size = data.draw(st.integers(1, logits.shape[1]))
    count = data.draw(st.integers(1, min(9, vocab_size)))
    found = likeliest_tokens(logits, vocab_size, count)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, sorted_ids(logits, vocab_size, count))


@pytest.mark.parametrize(
    ("width", "vocab_size"), [(4096, 4096), (20_000, 19_999), (33_000, 32_000), (8200, 8001)]
)
@pytest.mark.parametrize("decimals", [0, 2, 7])
def test_the_likeliest_of_large_vocabularies(width, vocab_size, decimals):
    logits = (np.random.default_rng(width).standard_normal((9, width)) * 3).astype(np.float32)
    logits[4, vocab_size - 3 :] += 50  # in no whole block
    logits[:, vocab_size:] = np.inf  # padding may hold anything
    logits = logits.round(decimals)
    logits.setflags(write=False)
    expected = sorted_ids(logits, vocab_size, WIDTH)
    np.testing.assert_array_equal(likeliest_tokens(logits, vocab_size, WIDTH), expected)
    for rows in (slice(3, 4), slice(0, 0), slice(None, None, -2)):
        np.testing.assert_array_equal(
            likeliest_tokens(logits[rows], vocab_size, WIDTH), expected[rows]
        )


@pytest.mark.parametrize("broken", [slice(0, 1), slice(40, None), slice(None)])
def test_a_broken_row_spoils_no_other(broken):
    logits = np.random.default_rng(5).standard_normal((3, 331)).astype(np.float32)
    whole = likeliest_tokens(logits, 331, WIDTH)
    for row in range(3):
        spoilt = logits.copy()
        spoilt[row, broken] = np.nan
        found = likeliest_tokens(spoilt, 331, WIDTH)
        expected = np.argsort(-np.nan_to_num(spoilt[row], nan=-np.inf), kind="stable")[:8]
        np.testing.assert_array_equal(found[row], expected)
        np.testing.assert_array_equal(np.delete(found, row, 0), np.delete(whole, row, 0))


def test_equal_logits_give_the_lowest_ids():
    found = likeliest_tokens(np.zeros((3, 5000), np.float32), 5000, WIDTH)
    np.testing.assert_array_equal(found, [range(8)] * 3)
