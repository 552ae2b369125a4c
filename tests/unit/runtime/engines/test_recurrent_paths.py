"""What recurrent layers of portable graphs are told: paths, states, and rows before a call."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.engines.portable.file import Ways
from edgespec.runtime.engines.portable.recurrence import (
    NOTHING,
    RecurrentPaths,
    columns_of,
    strips_of,
)

TRAILS = (3, 4)
_BATCH = ("paths", "real", "places")


class Pass:
    """A pass over random rows of one sequence, with rows before it that its state has or not."""

    def __init__(self, draw, carried=True):
        self.recent = [*range(100, 100 + int(draw.integers(0, 9)))]
        self.held = int(draw.integers(0, len(self.recent) + 1))
        count = int(draw.integers(1, 12))
        self.certain = int(draw.integers(0, count + 1))
        self.parents = [*range(-1, self.certain - 1)]
        for row in range(self.certain, count):
            self.parents.append(int(draw.integers(self.certain - 1, row)))
        self.write = draw.permutation(50)[:count].tolist()
        self.to = int(draw.choice([-1, 5]))
        if self.to < 0:
            self.certain = 0
        self.feeds = {
            "recent_write": np.array(self.write, np.int32),
            "parent": np.array(self.parents, np.int32),
            "sequence": np.zeros(count, np.int32),
            "recent": np.array(self.recent, np.int32),
            "recent_starts": np.array([0, len(self.recent)], np.int32),
        }
        if carried:
            self.feeds["carry"] = np.array([[2, self.to, self.held, self.certain]], np.int32)

    def path(self, row):
        """Slots of all rows up to this one, those before the pass among them."""
        own = []
        while row >= 0:
            own.insert(0, self.write[row])
            row = self.parents[row]
        return self.recent + own

    def moved(self, end):
        """How many of the first rows of all paths the state has behind these rows."""
        if self.to < 0:
            return self.held
        return len(self.recent) + min(self.certain, end)


@given(st.integers(0, 10000))
def test_rows_have_their_paths_in_any_parts(seed):
    draw = np.random.default_rng(seed)
    one = Pass(draw)
    paths = RecurrentPaths(one.feeds, Ways(True, TRAILS))
    assert [*paths.ends()] == []
    most = int(draw.integers(1, 6))
    count = len(one.parents)
    for start in range(0, count, most):
        part = slice(start, min(start + most, count))
        size = most + 2
        call = paths.call(part, size, lambda rows: rows + 3)
        known = [*call.recent.tolist(), *call.write.tolist()]
        first = len(call.recent)
        assert known[first:] == [one.write[min(start + n, part.stop - 1)] for n in range(size)]
        assert call.recent[0] == call.recent[-1] == NOTHING
        assert call.read_state == (2 if one.to < 0 or not start else one.to)
        assert call.write_state == (2 if one.to < 0 else one.to)
        begin = one.moved(start) if start else one.held
        lines = call.inputs["lines"]
        for row in range(size):
            path = one.path(min(start + row, part.stop - 1))
            assert [known[n] for n in np.flatnonzero(lines[row])] == path[begin:]
            assert lines[row, first + row] == 1
            for length in TRAILS:
                slots = [known[n] for n in call.inputs[f"trail.{length}"][row]]
                assert slots == [*[NOTHING] * length, *path][-length:]
        end = one.moved(part.stop)
        whole = one.path(min(one.certain, part.stop) - 1)
        assert [known[n] for n in np.flatnonzero(lines[size])] == whole[begin:end]
        unseen = call.inputs["unseen"]
        np.testing.assert_array_equal(unseen[:, first:-1], 1 - lines[:-1].T)
        assert unseen[:, -1].all()  # the state itself has no row
        for number, slot in enumerate(known[:first]):
            seen = [known[n] for n in np.flatnonzero(1 - unseen[:, number])]
            assert (not seen) == (slot == NOTHING or slot not in _behind(one, part, begin))
            assert not seen or seen[-1] == slot


@given(st.integers(0, 10000))
def test_rows_have_their_paths_as_a_batch(seed):
    draw = np.random.default_rng(seed)
    one = Pass(draw)
    step = int(draw.choice([1, 8]))
    paths = RecurrentPaths(one.feeds, Ways(False, (), (2, 4)), step)
    most = int(draw.integers(1, 6))
    count = len(one.parents)
    for start in range(0, count, most):
        part = slice(start, min(start + most, count))
        size = most + 2
        call = paths.call(part, size, lambda rows: rows)
        known = [*call.recent.tolist(), *call.write.tolist()]
        begin = one.moved(start) if start else one.held
        end = one.moved(part.stop)
        whole = one.path(min(one.certain, part.stop) - 1)
        assert {name.partition(".")[0] for name in call.inputs} == {"paths", "real", "places"}
        for length in (2, 4):
            batch, real, places = (call.inputs[f"{each}.{length}"] for each in _BATCH)
            assert batch.shape[1] % step == 0
            assert batch.shape[0] in (1, 2, 4, 8)
            assert real.shape == (*batch.shape, 1)
            told = [
                [known[n] for n in row[own]] for row, own in zip(batch, real[..., 0], strict=True)
            ]
            assert told[0] == whole[begin:end]
            for row in range(size):
                path = one.path(min(start + row, part.stop - 1))
                number, place = divmod(int(places[row]), batch.shape[1])
                assert real[number, place]
                slots = [known[n] for n in batch[number, : place + 1]]
                before = [*[NOTHING] * length, *path[:begin]][-(length - 1) :]
                assert slots == [*before, *path[begin:]]


def _behind(one, part, begin):
    """Slots of the rows before a part that its state does not have."""
    entered = {p for p in one.parents[part] if p < part.start}
    return {slot for row in entered for slot in one.path(row)[begin:]}


def test_convolutions_without_states_read_the_last_rows_alone():
    one = Pass(np.random.default_rng(3), carried=False)
    call = RecurrentPaths(one.feeds, Ways(False, (3,))).call(slice(0, 1), 1, lambda rows: rows)
    assert call.recent.tolist() == [NOTHING, *one.recent[-2:]]
    assert (call.read_state, call.write_state) == (NOTHING, NOTHING)
    assert call.inputs["trail.3"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("carry", "ends"),
    [
        ([[1, -1, 0, 0], [1, -1, 0, 0], [1, -1, 0, 0]], []),  # branches of one sequence
        ([[1, -1, 0, 0], [2, -1, 0, 0], [2, -1, 0, 0]], [2]),
        ([[1, 3, 0, 1], [1, -1, 0, 0], [-1, 4, 0, 0]], [2, 3]),
    ],
)
def test_calls_end_where_the_state_is_another(carry, ends):
    feeds = {
        "recent_write": np.arange(5, dtype=np.int32),
        "parent": np.array([-1, 0, -1, -1, 3], np.int32),
        "sequence": np.array([0, 0, 1, 2, 2], np.int32),
        "recent": np.zeros(0, np.int32),
        "recent_starts": np.zeros(4, np.int32),
        "carry": np.array(carry, np.int32),
    }
    assert [*RecurrentPaths(feeds, Ways(False, (2,))).ends()] == ends


def test_states_have_their_columns_in_strips_or_not():
    states = np.arange(2 * 3 * 2 * 5 * 16).reshape(2, 3, 2, 5, 16)
    columns = columns_of(states)
    assert columns.shape == (2, 3, 5, 32)
    np.testing.assert_array_equal(columns[1, 2, 4, 16:], states[1, 2, 1, 4])
    np.testing.assert_array_equal(strips_of(columns), states)
    rows = np.zeros((4, 7))
    assert columns_of(rows) is strips_of(rows) is rows
