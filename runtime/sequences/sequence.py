"""A sequence: its tokens, and the slots that hold their rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgespec.runtime.sequences.pool import KVPool
from edgespec.runtime.sequences.recurrent import Recurrence

Slots = npt.NDArray[np.int32]


class Sequence:
    """Tokens, and the slots of those that a model has read.

    Accepting appends slots, rolling back cuts the list, a fork shares slots. Sequences of several
    models may have the same tokens.

    Args:
        pool: pool of the model.
        tokens: its tokens, which whoever owns them may extend at any time.

    Attributes:
        pool: see above.
        tokens: see above.
        length: number of tokens that the model has read, the first ones.
        recurrence: what recurrent layers hold of them; None if the model has none.
    """

    __slots__ = ("_slots", "length", "pool", "recurrence", "tokens")

    def __init__(self, pool: KVPool, tokens: list[int]) -> None:
        self.pool = pool
        self.tokens = tokens
        self.length = 0
        self._slots: Slots = np.empty(64, np.int32)
        self.recurrence = None if pool.recurrent is None else Recurrence(pool.recurrent)

    @property
    def slots(self) -> Slots:
        """[length] int32: the slots of the tokens' rows, in order."""
        return self._slots[: self.length]

    @property
    def unread(self) -> list[int]:
        """The tokens that the model has not read."""
        return self.tokens[self.length :]

    def append(self, slots: list[int]) -> None:
        """Takes over the slots of the next tokens' rows, with the caller's references to them."""
        self._extend(slots)
        if self.recurrence is not None:
            self.recurrence.append(slots)
            self.cut(self.length)  # certain rows that were not accepted are in the state

    def _extend(self, slots: list[int]) -> None:
        end = self.length + len(slots)
        if end > self._slots.size:
            grown = np.empty(max(end, 2 * self._slots.size), np.int32)
            grown[: self.length] = self.slots
            self._slots = grown
        self._slots[self.length : end] = slots
        self.length = end

    def exchange(self, slots: list[int]) -> None:
        """Takes over other slots with the same rows for those of the first tokens."""
        self.pool.free(self._slots[: len(slots)].tolist())
        self._slots[: len(slots)] = slots

    def cut(self, length: int) -> None:
        """Drops the slots of all but the first `length` tokens; the tokens stay.

        Where recurrent layers have a state of more tokens, all slots are dropped: the model reads
        the sequence again. As far back as the last pass that read it began, its certain rows apart,
        a cut costs nothing. To go further back, keep a fork from where the sequence was shorter.
        """
        if self.recurrence is not None:
            length = self.recurrence.cut(length)
        if length < self.length:
            self.pool.free(self._slots[length : self.length].tolist())
            self.length = length

    def fork(self, length: int | None = None) -> Sequence:
        """Returns a new sequence of the same first tokens, which shares their slots.

        It shares none where `cut` would drop all.

        Args:
            length: number of tokens; None for as many as the model has read.
        """
        length = self.length if length is None else min(length, self.length)
        other = Sequence(self.pool, self.tokens[:length])
        if self.recurrence is not None:
            other.recurrence = self.recurrence.fork(length)
            length = other.recurrence.length
        shared = self._slots[:length].tolist()
        self.pool.share(shared)
        other._extend(shared)
        return other

    def free(self) -> None:
        """Drops all slots."""
        self.cut(0)
