"""Places of slots in caches that are written in order, beside a model of them that is plain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.arrays import spare_places
from edgespec.runtime.engines.portable.places import Places

SLOTS = 20


@given(st.lists(st.sets(st.integers(0, SLOTS - 1), min_size=1), max_size=60))
def test_each_slot_has_the_row_that_was_written_last(calls):
    """A cache of numbers of calls and slots, whose places are moved together as runners do it."""
    places = Places()
    places.grow(SLOTS)
    cache = np.zeros(places.count, np.int64)
    held = {}
    for number, called in enumerate(calls):
        slots = np.array(sorted(called, key=lambda each: (each * 7 + number) % SLOTS))
        places.free(slots)
        if places.end + len(slots) > SLOTS + 5:  # before they are used up, to do it often
            cache = cache[places.moved_together()]
            assert places.end == len(held.keys() - called)
        first = places.append(slots)
        cache[first : first + len(slots)] = rows = 100 * number + slots
        held |= zip(slots.tolist(), rows.tolist(), strict=True)
        assert first + len(slots) == places.end <= places.count
        assert {slot: cache[places.of_slots[slot]] for slot in held} == held
        assert (places.of_slots[sorted(set(range(SLOTS)) - held.keys())] == -1).all()


def test_rows_at_the_end_leave_no_hole():
    places = Places()
    places.grow(SLOTS)
    places.append(np.arange(6))
    places.free(np.array([2, 4, 5]))
    assert places.end == 4
    places.free(np.array([3]))
    assert places.end == 2


@pytest.mark.parametrize("slots", [1, 256, 4096])
def test_places_grow_with_slots(slots):
    places = Places()
    places.grow(slots)
    places.append(np.array([slots - 1]))
    places.grow(2 * slots)
    assert places.count == 2 * slots + spare_places(2 * slots)
    assert places.of_slots[slots - 1] == 0
    assert (places.end, len(places.of_slots)) == (1, 2 * slots)
