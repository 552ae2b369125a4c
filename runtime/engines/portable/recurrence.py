"""What recurrent layers of portable graphs are told of a call: rows before it, and paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from edgespec.runtime.arrays import Array, Floats, Ids
from edgespec.runtime.engines.portable.file import Ways

NOTHING = -1
"""The slot that stands for no row or no state: what is read of it are zeros."""

_STRIPS, _LANES = 5, 16  # dimensions of native graphs' states, and columns of a strip
_Entry = tuple[int, int]  # a sequence, and the last row before the call on a path; -1: none


class Way(NamedTuple):
    """Rows that lead to a state, one after the other.

    Attributes:
        rows: their numbers, of recent rows and behind these the call's; or their slots.
        moved: how many of the first the state that a call reads has already: they are read by
            convolutions alone.
    """

    rows: list[int]
    moved: int


_NOWHERE = Way([], 0)


@dataclass(frozen=True)
class RecurrentCall:
    """What a call of S rows, those of padding among them, is told besides the rows.

    Attributes:
        inputs: by name, see `docs/graph.md`.
        recent: [Q] slots of the rows before the call.
        write: [S] slots that the rows are written to.
        read_state: slot of the state that rows are computed from.
        write_state: slot of the state that the call returns.
    """

    inputs: dict[str, Array]
    recent: Ids
    write: Ids
    read_state: int
    write_state: int


class RecurrentPaths:
    """The paths of a pass, whose parts are computed one after the other.

    Args:
        feeds: inputs of a native graph, see `runtime/kernels/states.h`.
        ways: what the graph is told of them.
        step: lengths of paths that are told as a batch are multiples of it.
    """

    def __init__(self, feeds: Mapping[str, Array], ways: Ways, step: int = 1) -> None:
        self._write = feeds["recent_write"].astype(np.int64)
        self._parents: list[int] = feeds["parent"].tolist()
        self._owners: list[int] = feeds["sequence"].tolist()
        starts = feeds["recent_starts"].tolist()
        recent = feeds["recent"].tolist()
        self._recent: list[list[int]] = [recent[a:b] for a, b in pairwise(starts)]
        self._first: list[int] = np.searchsorted(
            feeds["sequence"], range(len(self._recent))
        ).tolist()
        self._carry: list[list[int]] | None = None
        if "carry" in feeds:
            self._carry = feeds["carry"].tolist()
        self._ways = ways
        self._step = step
        self._before = max(*ways.trails, *ways.paths, 1, 1) - 1  # rows that a convolution reads

    def ends(self) -> Iterator[int]:
        """Yields where calls must end: what follows is computed from another state."""
        if self._carry is None:
            return
        for number in range(1, len(self._carry)):
            (one, left, *_), (other, right, *_) = self._carry[number - 1 : number + 1]
            if one != other or max(left, right) >= 0:
                yield self._first[number]

    def call(self, part: slice, size: int, held: Callable[[int], int]) -> RecurrentCall:
        """Returns what a call is told.

        Args:
            part: consecutive rows, those before which were computed.
            size: number of rows with those of padding.
            held: gives Q for a number of recent rows, at least as many.
        """
        begun = dict[_Entry, Way]()  # of slots
        for entry in self._entries(part):
            path = self._path(*entry)
            moved = self._moved(entry, part.start, len(path))
            read = max(moved - self._before, 0)
            begun[entry] = Way(path[read:], moved - read)
        numbers = {NOTHING: 0}  # of recent rows, by slot
        for slots, _ in begun.values():
            for slot in slots:
                numbers.setdefault(slot, len(numbers))
        count = held(len(numbers))
        entered = {
            entry: Way([numbers[slot] for slot in slots], moved)
            for entry, (slots, moved) in begun.items()
        }
        taken = self._taken(part, size, count, entered)
        settled = self._settled(part, entered, taken)
        inputs = dict[str, Array]()
        if self._ways.lines:
            lines = _lines([*taken, settled], count + size)
            behind = [each.rows[each.moved :] for each in entered.values()]
            inputs |= {"lines": lines, "unseen": _unseen(lines, count, behind)}
        inputs |= {f"trail.{length}": _trail(taken, length) for length in self._ways.trails}
        for length in self._ways.paths:
            inputs |= self._paths(part, length, count, taken, settled)
        recent = np.full(count, NOTHING)
        recent[: len(numbers)] = [*numbers]
        rows = np.minimum(np.arange(part.start, part.start + size), part.stop - 1)
        read, written = self._states(part)
        return RecurrentCall(inputs, recent, self._write[rows], read, written)

    def _entries(self, part: slice) -> dict[_Entry, None]:
        """Returns where paths enter a call."""
        found = dict[_Entry, None]()
        for row in range(part.start, part.stop):
            if self._parents[row] < part.start:
                found[self._owners[row], self._parents[row]] = None
        return found

    def _path(self, owner: int, row: int) -> list[int]:
        """Returns the slots of a sequence's recent rows, and of its rows up to this one."""
        ancestors = list[int]()
        while row >= 0:
            ancestors.append(int(self._write[row]))
            row = self._parents[row]
        return self._recent[owner] + ancestors[::-1]

    def _moved(self, entry: _Entry, start: int, length: int) -> int:
        """Returns how many of the first rows of a path the state has that a call reads."""
        if self._carry is None:
            return length
        owner, _ = entry
        _, after, held, certain = self._carry[owner]
        done = start - self._first[owner]
        if after < 0 or not done:
            return held
        return len(self._recent[owner]) + min(certain, done)

    def _states(self, part: slice) -> tuple[int, int]:
        """Returns the slots of the states that a call reads and returns."""
        if self._carry is None:
            return NOTHING, NOTHING
        owner = self._owners[part.start]
        before, after, *_ = self._carry[owner]
        read = before if after < 0 or part.start == self._first[owner] else after
        return read, read if after < 0 else after

    def _taken(
        self, part: slice, size: int, count: int, entered: Mapping[_Entry, Way]
    ) -> list[Way]:
        """Returns the way to each row of a call; those of padding are like the last one."""
        found = list[Way]()
        for number in range(size):
            row = min(part.start + number, part.stop - 1)
            parent = self._parents[row]
            inside = parent >= part.start
            way = found[parent - part.start] if inside else entered[self._owners[row], parent]
            found.append(Way([*way.rows, count + number], way.moved))
        return found

    def _settled(self, part: slice, entered: Mapping[_Entry, Way], taken: Sequence[Way]) -> Way:
        """Returns the way to the state that a call returns."""
        owner = self._owners[part.start]
        if self._carry is None or self._carry[owner][1] < 0:
            return _NOWHERE  # it returns the state that it reads
        trunk = min(self._first[owner] + self._carry[owner][3], part.stop)
        rows: int = trunk - part.start
        if rows > 0:
            return taken[rows - 1]
        if part.start == self._first[owner]:
            return entered[owner, -1]
        return _NOWHERE

    def _paths(
        self, part: slice, length: int, count: int, taken: Sequence[Way], settled: Way
    ) -> dict[str, Array]:
        """Returns all paths as a batch, behind that of the state that is returned."""
        inner = {each - part.start for each in self._parents[part]}
        rows = range(part.stop - part.start)
        ends = [taken[row] for row in rows if row not in inner]
        batch = [settled, *(each for each in ends if each != settled)]
        before = length - 1
        longest = max(len(way.rows) - way.moved for way in batch) + before
        longest = -(-longest // self._step) * self._step
        shape = 1 << (len(batch) - 1).bit_length(), longest
        paths = np.zeros(shape, np.int64)
        real = np.zeros((*shape, 1), np.bool_)
        places = np.zeros(len(taken), np.int64)
        for number, (way, moved) in enumerate(batch):
            own = way[max(moved - before, 0) :]
            first = max(before - moved, 0)  # a text begins with less
            paths[number, first : first + len(own)] = own
            real[number, before : first + len(own)] = True
            for place, row in enumerate(own, number * longest + first):
                if row >= count:
                    places[row - count] = place
        places[len(rows) :] = places[len(rows) - 1]
        return {f"paths.{length}": paths, f"real.{length}": real, f"places.{length}": places}


def columns_of(states: Array) -> Array:
    """Returns states of native graphs, whose columns lie in strips, as portable ones read them.

    Args:
        states: [n, heads, strips, key size, 16], to [n, heads, key size, strips * 16]; what has
            other dimensions is no state, and stays as it is.
    """
    if states.ndim != _STRIPS:
        return states
    count, heads, strips, size, lanes = states.shape
    return states.transpose(0, 1, 3, 2, 4).reshape(count, heads, size, strips * lanes)


def strips_of(states: Array) -> Array:
    """Returns states as native graphs have them, see `columns_of`."""
    if states.ndim != _STRIPS - 1:
        return states
    count, heads, size, columns = states.shape
    return states.reshape(count, heads, size, columns // _LANES, _LANES).transpose(0, 1, 3, 2, 4)


def _lines(ways: Sequence[Way], rows: int) -> Floats:
    """Returns what the state behind each way has besides the one that the call reads."""
    lines = np.zeros((len(ways), rows), np.float32)
    for line, way in zip(lines, ways, strict=True):
        line[way.rows[way.moved :]] = 1
    return lines


def _trail(ways: Sequence[Way], length: int) -> Array:
    """Returns which rows a convolution reads, by their numbers."""
    return np.array([[*[0] * length, *way.rows][-length:] for way in ways])


def _unseen(lines: Floats, count: int, behind: Sequence[Sequence[int]]) -> Floats:
    """Returns what the state of each row, which is a column, does not have.

    Args:
        lines: see `_lines`, the last one of the state that is returned.
        count: Q.
        behind: rows before the call that the state does not have, on each path that enters it.
    """
    every = np.zeros((lines.shape[1], lines.shape[1] + 1), np.float32)
    every[:, count:-1] = lines[:-1].T
    for path in behind:
        for place, number in enumerate(path, 1):
            every[list(path[:place]), number] = 1
    return 1 - every
