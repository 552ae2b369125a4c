"""A sequence: its tokens, and the slots that hold their rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgespec.runtime.sequences.pool import KVPool

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
    """

    __slots__ = ("_slots", "length", "pool", "tokens")

    def __init__(self, pool: KVPool, tokens: list[int]) -> None:
        self.pool = pool
        self.tokens = tokens
        self.length = 0
        self._slots: Slots = np.empty(64, np.int32)

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
        """Drops the slots of all but the first `length` tokens; the tokens stay."""
        if length < self.length:
            self.pool.free(self._slots[length : self.length].tolist())
            self.length = length

    def fork(self, length: int | None = None) -> Sequence:
        """Returns a new sequence of the same first tokens, which shares their slots.

        Args:
            length: number of tokens; None for as many as the model has read.
        """
        length = self.length if length is None else min(length, self.length)
        other = Sequence(self.pool, self.tokens[:length])
        shared = self._slots[:length].tolist()
        self.pool.share(shared)
        other.append(shared)
        return other

    def free(self) -> None:
        """Drops all slots."""
        self.cut(0)
