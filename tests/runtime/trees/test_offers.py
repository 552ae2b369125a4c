"""How texts share the rows of a pass."""

from __future__ import annotations

import math
from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.trees.offers import Offer, grant

VALUES = st.lists(st.floats(0, 1), max_size=4).map(lambda values: sorted(values, reverse=True))


def offer(values, verify):
    return Offer([0.0, *accumulate(values)], verify, nodes=0, seconds=0.0)


@given(
    st.lists(VALUES, min_size=1, max_size=3), st.floats(0.01, 5), st.floats(0, 9), st.integers(0, 2)
)
def test_no_other_way_to_share_rows_gives_a_larger_product_of_speeds(texts, row, spent, others):
    def verify(rows):
        return 1 + row * rows

    offers = [offer(values, verify) for values in texts]
    base = len(offers) + others

    def speeds(nodes):
        """The product of tokens per second of the offering texts, and of others with one token."""
        seconds = spent + verify(base + sum(nodes))
        own = (1 + each.gains[n] for each, n in zip(offers, nodes, strict=True))
        return math.prod(tokens / seconds for tokens in own) / seconds**others

    found = grant(offers, rows=base, most_rows=64, texts=base, seconds=spent)
    every = product(*(range(len(values) + 1) for values in texts))
    full = {1, 2, 3, 4, 5, 6, 8, 10, 12, base, base + sum(map(len, texts))}
    filling = [nodes for nodes in every if base + sum(nodes) in full]
    assert speeds([each.nodes for each in found]) == pytest.approx(max(map(speeds, filling)))
    assert {each.seconds for each in found} == {
        spent + verify(base + sum(each.nodes for each in found))
    }


def test_the_text_whose_drafts_are_accepted_gets_the_rows():
    offers = [offer([0.9, 0.8, 0.7, 0.6], lambda rows: 1.0), offer([0.1] * 4, lambda rows: 1.0)]
    found = grant(offers, rows=2, most_rows=6, texts=2, seconds=0.0)
    assert [each.nodes for each in found] == [4, 0]


def test_together_texts_take_no_more_rows_than_a_bucket_that_each_would_fill():
    def verify(rows):
        return 1.0 if rows <= 8 else 3.0

    found = grant([offer([0.5, 0.4], verify)] * 6, rows=6, most_rows=64, texts=6, seconds=0.0)
    assert sum(each.nodes for each in found) == 2


def test_a_text_that_is_known_before_does_not_hold_up_others():
    """Of 64 sure tokens some are left for later rounds, where a text without drafts waits."""

    def verify(rows):
        return 0.06 + 0.009 * rows

    sure = offer([1.0] * 63, verify)
    (alone,) = grant([sure], rows=1, most_rows=64, texts=1, seconds=0.0)
    beside, plain = grant([sure, offer([], verify)], rows=2, most_rows=64, texts=2, seconds=0.0)
    assert (alone.nodes, plain.nodes) == (63, 0)
    assert beside.seconds < 3 * verify(2)
    assert (1 + beside.nodes) / beside.seconds > 3 / verify(2)
