"""Which texts share passes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.bundle.caches import CacheGroup
from edgespec.runtime.execution.sharing import parts, reading

CAPACITIES = st.lists(st.sampled_from([1024, 2048, 4096, 8192, 16384]), min_size=1, max_size=5)


def price(capacities, largest, cost):
    """What passes cost, given the largest capacity in the pass of each text."""
    assert all(own <= most for own, most in zip(capacities, largest, strict=True))
    return sum(cost(largest.count(most), most) for most in set(largest))


@given(CAPACITIES, st.integers(0, 40_000))
def test_no_other_way_to_share_costs_less(capacities, weights):
    def cost(texts, capacity):
        return weights + texts * capacity

    found = parts(capacities, cost)
    ways = product(*([each for each in set(capacities) if each >= own] for own in capacities))
    assert price(capacities, found, cost) == min(price(capacities, way, cost) for way in ways)


@pytest.mark.parametrize(
    ("short", "expected"), [(1, [8192, 8192]), (3, [8192, *[2048] * 3])], ids=["one", "three"]
)
def test_one_short_text_shares_the_pass_of_a_long_one_and_three_do_not(short, expected):
    cost = reading(1_100_000_000, [CacheGroup(tuple(range(28)), 2, 128)])
    assert parts([8192, *[2048] * short], cost) == expected


def test_layers_with_a_window_read_no_more_than_they_keep():
    cost = reading(5, [CacheGroup((0, 1), 1, 4, window=512)])
    assert cost(3, 8192) == cost(3, 4096) > cost(3, 256)
    assert cost(3, 4096) - 5 == 3 * (cost(1, 4096) - 5)
