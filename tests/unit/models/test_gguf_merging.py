"""Pairs of tokens that make another token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgespec.models.formats.gguf.merging import pairs

LETTERS = st.text(st.sampled_from("ab\0\U0001f600"), min_size=1, max_size=9)


@given(st.lists(LETTERS, unique=True, max_size=60))
def test_pairs_are_all_that_make_a_text(texts):
    expected = {
        (whole, texts.index(text[:n]), texts.index(text[n:]))
        for whole, text in enumerate(texts)
        for n in range(1, len(text))
        if text[:n] in texts and text[n:] in texts
    }
    found = [each.tolist() for each in pairs(texts)]
    assert set(zip(*found, strict=True)) == expected
    assert len(found[0]) == len(expected)


def test_a_text_that_begins_and_ends_alike():
    texts = ["a" * length for length in range(1, 200)]
    assert len(pairs(texts)[0]) == sum(range(199))
