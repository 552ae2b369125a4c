"""What recurrent layers of portable graphs are told of a call: rows before it, and paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from edgespec.runtime.arrays import Array, Floats, Ids

NOTHING = -1
"""The slot that stands for no row or no state: what is read of it are zeros."""

_STRIPS, _LANES = 5, 16  # dimensions of native graphs' states, and columns of a strip
_Entry = tuple[int, int]  # a sequence, and the last row before the call on a path; -1: none


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
        trails: how many rows convolutions read.
    """

    def __init__(self, feeds: Mapping[str, Array], trails: Sequence[int]) -> None:
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
        self._trails = trails

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
        entries = {each: self._path(*each) for each in self._entries(part)}
        moved = {each: self._moved(each, part.start, len(path)) for each, path in entries.items()}
        numbers = {NOTHING: 0}  # of recent rows, by slot
        for entry, path in entries.items():
            convolved = max(len(path) - max(self._trails) + 1, 0)
            for slot in path[min(moved[entry], convolved) :]:
                numbers.setdefault(slot, len(numbers))
        count = held(len(numbers))
        before = {each: [numbers.get(slot, 0) for slot in path] for each, path in entries.items()}
        behind = {each: path[moved[each] :] for each, path in before.items()}
        lines = self._lines(part, size, count, behind)
        inputs: dict[str, Array] = {"lines": lines, "unseen": _unseen(lines, count, behind)}
        inputs |= self._trailing(part, size, count, before)
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

    def _lines(
        self, part: slice, size: int, count: int, behind: Mapping[_Entry, list[int]]
    ) -> Floats:
        """Returns what the state of each row has besides the one that the call reads."""
        lines = np.zeros((size + 1, count + size), np.float32)
        rows = part.stop - part.start
        for number, row in enumerate(range(part.start, part.stop)):
            parent = self._parents[row]
            if parent < part.start:
                lines[number, behind[self._owners[row], parent]] = 1
            else:
                lines[number] = lines[parent - part.start]
            lines[number, count + number] = 1
        last = count + rows - 1
        lines[rows:size] = lines[rows - 1]
        lines[rows:size, last] = 0
        lines[range(rows, size), range(count + rows, count + size)] = 1
        owner = self._owners[part.start]
        if self._carry is None or self._carry[owner][1] < 0:
            return lines  # it returns the state that it reads
        trunk = min(self._first[owner] + self._carry[owner][3], part.stop)
        if trunk > part.start:
            lines[size] = lines[trunk - 1 - part.start]
        elif part.start == self._first[owner]:
            lines[size, behind[owner, -1]] = 1
        return lines

    def _trailing(
        self, part: slice, size: int, count: int, before: Mapping[_Entry, list[int]]
    ) -> dict[str, Array]:
        """Returns which rows convolutions read, by their numbers."""
        found = {each: np.zeros((size, each), np.int64) for each in self._trails}
        ways = list[list[int]]()
        for number, row in enumerate(range(part.start, part.stop)):
            parent = self._parents[row]
            entered = parent < part.start
            way = before[self._owners[row], parent] if entered else ways[parent - part.start]
            ways.append([*way, count + number][-max(self._trails) :])
            for length, trail in found.items():
                own = ways[-1][-length:]
                trail[number, length - len(own) :] = own
        for trail in found.values():
            trail[len(ways) :] = trail[len(ways) - 1]
        return {f"trail.{length}": trail for length, trail in found.items()}


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


def _unseen(lines: Floats, count: int, behind: Mapping[_Entry, list[int]]) -> Floats:
    """Returns what the state of each row, which is a column, does not have.

    Args:
        lines: see `RecurrentPaths._lines`.
        count: Q.
        behind: rows before the call that the state does not have, by where paths enter it.
    """
    every = np.zeros((lines.shape[1], lines.shape[1] + 1), np.float32)
    every[:, count:-1] = lines[:-1].T
    for path in behind.values():
        for place, number in enumerate(path, 1):
            every[path[:place], number] = 1
    return 1 - every
