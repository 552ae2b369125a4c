"""Tests of the likeliest tokens against a stable sort, and of rows with NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgespec.runtime.drafters.successors import WIDTH
from edgespec.runtime.sampling.likeliest import likeliest_tokens


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
