"""What recurrent layers hold of sequences: a state, and the rows that it does not have yet.

A state is what all rows of a sequence have left, so a tree would need one for each node. Instead
what each row adds to the state is kept for as long as the row may be rejected: accepting keeps it,
and the next pass adds it; rejecting frees it (Wu et al., STree, 2025). The inputs are described in
`runtime/kernels/states.h`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from edgespec.runtime.arrays import Array
from edgespec.runtime.sequences.pool import ChunkedMemory, HostMemory, Pool, PoolMemory

if TYPE_CHECKING:
    from edgespec.bundle import StateShape
    from edgespec.runtime.sequences.model import Rows

CHECKPOINTS = 8
"""Largest number of a model's checkpoints, for which memory is planned; see `Checkpoints`."""

_PLACE = "recurrence"
_ROWS, _STATES = 192, 4  # slots that the pools grow by, at least; a row of a model may be 1 MB


class RecurrentPool:
    """Slots for states and rows of any number of sequences.

    Args:
        shapes: the recurrent layers.
        memory: where arrays lie; None: where numpy has them.

    Attributes:
        rows: `rows.L` [slots, width] float32 of each layer L: what rows add.
        states: `states.L` [slots, *state] float32 of each layer that has a state. A device has
            both in a form of its own.
        before: number of rows before a row that it is computed from, besides the state.
    """

    def __init__(self, shapes: Sequence[StateShape], memory: PoolMemory | None = None) -> None:
        lying = HostMemory() if memory is None else memory
        self.rows = Pool(
            {f"rows.{each.layer}": ((), (each.width,), np.float32) for each in shapes},
            ChunkedMemory(lying, _ROWS),
        )
        self.states = Pool(
            {f"states.{each.layer}": ((), each.state, np.float32) for each in shapes if each.state},
            ChunkedMemory(lying, _STATES),
        )
        self.before = max(each.before for each in shapes)
        self._new: dict[int, int] = {}  # by slot of the cache: rows that no sequence has taken

    def reset(self) -> None:
        """See `Pool.reset`."""
        self.rows.reset()
        self.states.reset()
        self._new.clear()

    def begin(self) -> RecurrentState:
        """Returns what layers hold of a sequence that nothing was read of."""
        return RecurrentState(self)

    def restored(self, held: Mapping[str, Array], length: int) -> RecurrentState:
        """Returns what `RecurrentState.read` read of a sequence whose state has all its rows.

        Raises:
            KeyError: if an array is missing.
            ValueError: if one does not fit.
        """
        made = self.begin()
        place = held[_PLACE]
        if place.dtype != np.int64 or place.shape != (2,):
            raise ValueError(f"{_PLACE} does not fit")
        covered, first = place.tolist()
        if not max(covered - self.before, 0) >= first >= 0 or covered != length:
            raise ValueError(f"{_PLACE} is {covered}, {first}")
        if any(held[name].shape[:1] != (length - first,) for name in self.rows.arrays):
            raise ValueError("rows do not fit")
        made.rows = self.rows.take(length - first)
        made.covered = covered
        made.first = first
        try:
            self.rows.write(made.rows, held)
            if covered:
                made.state = self.states.take(1)[0]
                self.states.write([made.state], held)
        except ValueError:
            made.cut(0)
            raise
        return made

    @staticmethod
    def planned_bytes(shapes: Sequence[StateShape], sequences: int) -> int:
        """Returns the bytes of so many sequences' states and chunks, and of all checkpoints."""
        states = sum(prod(each.state) for each in shapes if each.state)
        rows = sequences * _ROWS * sum(each.width for each in shapes)
        return 4 * ((sequences + CHECKPOINTS) * states + rows)

    def inputs(self, batch: Iterable[Rows], slots: Sequence[int]) -> dict[str, Array]:
        """Returns a graph's inputs for a pass, which takes the sequences' states further.

        If the pass fails, their states are lost.

        Args:
            batch: rows of sequences, each of which is there once, or with branches alone.
            slots: slots in the cache of all rows.
        """
        write = self.rows.take(len(slots))
        recent: list[int] = []
        starts = [0]
        carry = list[tuple[int, int, int, int]]()
        left = list[int]()
        for rows in batch:
            each = rows.sequence.recurrence
            assert each is not None, "its model has recurrent layers"
            recent += each.rows
            recent += [self._new[slot] for slot in rows.branch]
            starts.append(len(recent))
            before = each.state
            held = each.covered - each.first
            certain = each.length + rows.certain
            after = -1  # a branch's rows are no part of the state
            if not rows.branch and certain > each.covered:
                after = before
                if before < 0 or self.states.references(before) > 1:
                    after = self.states.take(1)[0]
                    left += [before] if before >= 0 else []
                each.state = after
                each.covered = certain
            carry.append((before, after, held, rows.certain))
        self.states.free(left)  # not before all have theirs: the pass still reads them
        self._new.update(zip(slots, write, strict=True))
        inputs: dict[str, Array] = {
            "recent_write": np.array(write, np.int32),
            "recent": np.array(recent, np.int32),
            "recent_starts": np.array(starts, np.int32),
            **self.rows.arrays,
        }
        if self.states.arrays:
            inputs |= {"carry": np.array(carry, np.int32), **self.states.arrays}
        return inputs

    def take(self, slots: Iterable[int]) -> list[int]:
        """Returns the rows at these slots of the cache, for the sequence that they become part of.

        Whoever has them owns them.
        """
        return [self._new.pop(slot) for slot in slots]

    def drop(self, slots: Iterable[int]) -> None:
        """Frees the rows at those of these slots whose rows no sequence has taken."""
        self.rows.free(self.take([slot for slot in slots if slot in self._new]))


class RecurrentState:
    """A sequence's state, and the rows that it is computed further with.

    Args:
        pool: of the model.

    Attributes:
        state: its slot; -1: the sequence has none yet.
        covered: number of the sequence's rows that are part of the state, the first ones.
        first: number of the sequence's row that `rows` begin with.
        rows: slots of the rows behind the state, and of some before them.
    """

    __slots__ = ("_pool", "covered", "first", "rows", "state")

    def __init__(self, pool: RecurrentPool) -> None:
        self._pool = pool
        self.state = -1
        self.covered = 0
        self.first = 0
        self.rows: list[int] = []

    @property
    def length(self) -> int:
        """Number of the sequence's rows."""
        return self.first + len(self.rows)

    def append(self, slots: Sequence[int]) -> None:
        """Takes over the rows at these slots of the cache, and frees those not needed any more."""
        self.rows += self._pool.take(slots)
        old = self.covered - self._pool.before - self.first
        if old > 0:
            self._pool.rows.free(self.rows[:old])
            del self.rows[:old]
            self.first += old

    def cut(self, length: int) -> int:
        """Drops rows behind the first `length`, or everything if the state has some of them.

        Returns:
            The number of rows that are left.
        """
        if length >= self.covered:
            kept = length - self.first
            self._pool.rows.free(self.rows[kept:])
            del self.rows[kept:]
            return length
        self._pool.rows.free(self.rows)
        if self.state >= 0:
            self._pool.states.free([self.state])
        self.state = -1
        self.covered = 0
        self.first = 0
        self.rows = []
        return 0

    def read(self) -> dict[str, Array]:
        """Returns copies of its state and rows: arrays by name."""
        state = [self.state] if self.state >= 0 else []
        place = np.array([self.covered, self.first], np.int64)
        return {**self._pool.rows.read(self.rows), **self._pool.states.read(state), _PLACE: place}

    def fork(self, length: int) -> RecurrentState:
        """Returns the same of the first `length` rows, shared; of none if it has no such state."""
        other = RecurrentState(self._pool)
        if length >= self.covered:
            other.state = self.state
            other.covered = self.covered
            other.first = self.first
            other.rows = self.rows[: length - self.first]
            self._pool.rows.share(other.rows)
            if self.state >= 0:
                self._pool.states.share([self.state])
        return other
