from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from toys import toy_shape

from edgespec.errors import MemoryLimitError
from edgespec.runtime.sequences import pool as pools
from edgespec.runtime.sequences.pool import KVPool, TokenSequence


@pytest.mark.parametrize(("kv", "kind"), [("fp32", np.float32), ("fp16", np.float16)])
def test_arrays_have_the_shapes_of_the_layers(kv, kind):
    shapes = [toy_shape(0, 2, 16), toy_shape(3, 4, 32)]
    pool = KVPool(shapes, kv)
    assert pool.arrays["pool.0"].shape == (2, 2, pool.capacity, 16)
    assert pool.arrays["pool.3"].shape == (2, 4, pool.capacity, 32)
    assert all(array.dtype == kind and not array.any() for array in pool.arrays.values())
    assert KVPool.slot_bytes(shapes, kv) == np.dtype(kind).itemsize * 2 * (2 * 16 + 4 * 32)


def test_int8_has_a_scale_for_each_row_of_a_head():
    pool = KVPool([toy_shape(1, 2, 16)], "int8")
    assert pool.arrays["pool.1"].dtype == np.int8
    assert pool.arrays["scales.1"].shape == (2, 2, pool.capacity)
    assert KVPool.slot_bytes([toy_shape(1, 2, 16)], "int8") == 2 * 2 * (16 + 4)


def test_growing_keeps_what_slots_hold():
    pool = KVPool([toy_shape()], "fp32")
    taken = pool.take(pool.capacity)
    pool.arrays["pool.0"][:, :, taken[-1]] = 7
    more = pool.take(1)
    assert more[0] not in taken
    array = pool.arrays["pool.0"]
    assert array.flags.c_contiguous
    assert (array[:, :, taken[-1]] == 7).all()
    assert not array[:, :, more[0]].any()


def test_shrinking_keeps_slots_in_use_and_those_before_them():
    pool = KVPool([toy_shape()], "fp32")
    first = pool.capacity
    size = pool.size
    taken = pool.take(5 * first)
    grown = pool.capacity
    pool.arrays["pool.0"][:, :, taken[first]] = 7
    pool.free(taken[: first - 1] + taken[first + 1 :])
    pool.shrink()
    assert grown > pool.capacity == 2 * first
    assert (pool.arrays["pool.0"][:, :, taken[first]] == 7).all()
    assert (pool.used, pool.references(taken[first])) == (2, 1)
    pool.free([taken[first - 1], taken[first]])
    pool.shrink()
    assert (pool.capacity, pool.size, pool.used) == (first, size, 0)
    assert sorted(pool.take(2 * first)) == list(range(2 * first))


def test_a_pool_does_not_grow_beyond_its_limit():
    pool = KVPool([toy_shape()], "fp32", limit=10)
    assert pool.take(10) == list(range(10))
    with pytest.raises(MemoryLimitError, match="has room for 10 rows, and 11 are needed"):
        pool.take(1)
    assert pool.used == 10


def test_rejected_slots_are_taken_again_in_the_same_order():
    pool = KVPool([toy_shape()], "fp32")
    first = pool.take(4)
    pool.free(first[1:])
    assert pool.take(3) == first[1:]


class Histories(RuleBasedStateMachine):
    """Sequences against lists of the rows that they should have."""

    def __init__(self):
        super().__init__()
        self.chunk = pools._CHUNK
        pools._CHUNK = 4
        self.pool = KVPool([toy_shape()], "fp32")
        self.sequences = []
        self.rows = []
        self.written = 0

    def teardown(self):
        pools._CHUNK = self.chunk

    @rule()
    def begin(self):
        self.sequences.append(TokenSequence(self.pool, []))
        self.rows.append([])

    @rule(data=st.data(), count=st.integers(1, 9))
    def append(self, data, count):
        if self.sequences:
            one = data.draw(st.integers(0, len(self.sequences) - 1))
            slots = self.pool.take(count)
            for slot in slots:
                self.written += 1
                self.pool.arrays["pool.0"][:, :, slot] = self.written
                self.rows[one].append(self.written)
            kept = data.draw(st.integers(0, count))
            self.sequences[one].tokens += [1] * kept
            self.sequences[one].append(slots[:kept])
            self.pool.free(slots[kept:])
            del self.rows[one][len(self.rows[one]) - (count - kept) :]

    @rule(data=st.data())
    def cut(self, data):
        if self.sequences:
            one = data.draw(st.integers(0, len(self.sequences) - 1))
            length = data.draw(st.integers(0, 12))
            self.sequences[one].cut(length)
            del self.rows[one][length:]

    @rule(data=st.data())
    def fork(self, data):
        if self.sequences:
            one = data.draw(st.integers(0, len(self.sequences) - 1))
            length = data.draw(st.none() | st.integers(0, 12))
            self.sequences.append(self.sequences[one].fork(length))
            self.rows.append(self.rows[one][:length])

    @rule(data=st.data())
    def free(self, data):
        if self.sequences:
            one = data.draw(st.integers(0, len(self.sequences) - 1))
            self.sequences.pop(one).free()
            self.rows.pop(one)

    @invariant()
    def every_reference_is_counted(self):
        held = [slot for each in self.sequences for slot in each.slots.tolist()]
        counts = [held.count(slot) for slot in range(self.pool.capacity)]
        assert [self.pool.references(slot) for slot in range(self.pool.capacity)] == counts
        assert self.pool.used == len(set(held))

    @invariant()
    def sequences_hold_their_rows(self):
        for sequence, rows in zip(self.sequences, self.rows, strict=True):
            assert self.pool.arrays["pool.0"][1, 0, sequence.slots, 0].tolist() == rows


TestHistories = Histories.TestCase


@given(st.lists(st.integers(1, 40), max_size=12))
def test_no_slot_is_free_and_used_at_once(counts):
    pool = KVPool([toy_shape()], "fp32")
    taken = [slot for count in counts for slot in pool.take(count)]
    assert len(set(taken)) == len(taken) == pool.used
