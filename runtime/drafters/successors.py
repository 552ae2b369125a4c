"""The successor table: the likeliest next tokens after tokens that the target has seen.

A verification pass computes logits for every row of a tree, also for rejected ones. Their likeliest
tokens, stored by the tokens before them, are drafts that need no model: Luo et al., Token
Recycling, 2024, where one token is the key. Here two tokens are the key, because they say more; the
last token alone is the fallback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgespec.errors import InputError
from edgespec.runtime.drafters.learned_files import DAMAGED, LearnedFile

WIDTH = 8
"""Number of successors of each key."""
CAPACITY = 100_000
"""Default number of keys in a table: about 15 MB."""
VERSION = 1
"""Version of the file format of `Successors.save`."""

_ALONE = -2  # previous token in keys of a single token; -1 marks the beginning of a text
_BYTES_A_KEY = 60  # of the two integers in a dictionary entry
_FILE = LearnedFile(b"edgespec-draft-memory", VERSION, "draft memory")

Ids = npt.NDArray[np.int64]


class Successors:
    """The likeliest next tokens by the last two tokens, and by the last one.

    A full table drops the key that was inserted first. Learning a key again replaces its
    successors, but not its place in that order.

    Args:
        vocab_size: Number of token ids.
        capacity: Largest number of keys, at least 2. Each learned row takes two keys.
    """

    def __init__(self, vocab_size: int, capacity: int = CAPACITY) -> None:
        self._vocab_size = vocab_size
        self._capacity = capacity
        # A ring buffer of slots in the order of insertion, with one key and one row each.
        self._keys: list[int] = []
        self._rows = np.zeros((capacity, WIDTH), dtype=np.int32)
        self._slots: dict[int, int] = {}
        self._oldest = 0

    def __len__(self) -> int:
        """Number of keys in the table."""
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """Size of the table in memory, in bytes."""
        table = sys.getsizeof(self._slots) + sys.getsizeof(self._keys)
        return self._rows.nbytes + table + _BYTES_A_KEY * len(self)

    def learn(self, previous: Sequence[int], tokens: Sequence[int], top_ids: Ids) -> None:
        """Store what the target expects after n tokens; a later row replaces an earlier one.

        Args:
            previous: [n] the token before each token, -1 at the beginning of a text.
            tokens: [n] the tokens.
            top_ids: [n, 8] int64, the likeliest tokens after each, best first (see
                `likeliest_tokens`). A smaller vocabulary gives fewer columns; the last is then
                repeated.
        """
        lacking = WIDTH - top_ids.shape[1]
        if lacking:
            top_ids = np.pad(top_ids, ((0, 0), (0, lacking)), "edge")
        slots = []
        for before, token in zip(previous, tokens, strict=True):
            slots.append(self._slot(self._key(before, token)))
            slots.append(self._slot(self._key(_ALONE, token)))
        # If a slot occurs twice, numpy keeps the later row.
        self._rows[slots] = np.repeat(top_ids, 2, axis=0)

    def after(self, previous: int, token: int) -> tuple[Sequence[int], int]:
        """Returns what the target may expect after two tokens.

        Args:
            previous: The token before `token`, -1 at the beginning of a text.
            token: The last token.

        Returns:
            [8] ids, best first, and the number of tokens of the key that was found: 2, 1, or 0 with
            no ids.
        """
        slot, matched = self._slots.get(self._key(previous, token)), 2
        if slot is None:
            slot, matched = self._slots.get(self._key(_ALONE, token)), 1
            if slot is None:
                return (), 0
        return self._rows[slot].tolist(), matched

    def save(self, path: Path, fingerprint: str) -> None:
        """Write the table to a file, which is replaced as a whole or not at all.

        Args:
            path: Path of the file; its folder exists.
            fingerprint: What the table was learned from, in one line: the bundle's digest.

        Raises:
            InputError: If the file cannot be written.
        """
        order = np.roll(np.arange(len(self)), -self._oldest)
        keys = np.array(self._keys, dtype=np.int64)[order]
        entries = np.empty((len(self), 2 + WIDTH), dtype="<i4")
        entries[:, 0] = keys // self._vocab_size + _ALONE
        entries[:, 1] = keys % self._vocab_size
        entries[:, 2:] = self._rows[order]
        _FILE.write(path, fingerprint, entries.tobytes())

    @classmethod
    def load(
        cls, path: Path, fingerprint: str, vocab_size: int, capacity: int = CAPACITY
    ) -> Successors:
        """Read a table that `save` has written; of more than `capacity` keys the latest.

        Raises:
            InputError: If the file cannot be read, is damaged, has another version, was learned
                from another bundle, or holds ids outside the vocabulary.
        """
        content, width = _FILE.read(path, fingerprint), 2 + WIDTH
        if len(content) % (4 * width):
            raise InputError(f"{path} ends inside an entry: {DAMAGED}")
        entries = np.frombuffer(content, dtype="<i4").reshape(-1, width)
        previous, rest = entries[:, :1], entries[:, 1:]
        for ids, least in ((previous, _ALONE), (rest, 0)):
            if ids.size and not (least <= ids.min() and ids.max() < vocab_size):
                raise InputError(
                    f"{path} holds token ids from {ids.min()} to {ids.max()}, the vocabulary has "
                    f"{vocab_size}: {DAMAGED}"
                )
        table = cls(vocab_size, capacity)
        kept = entries[-capacity:]
        keys = (kept[:, 0].astype(np.int64) - _ALONE) * vocab_size + kept[:, 1]
        table._keys = keys.tolist()
        table._slots = {key: slot for slot, key in enumerate(table._keys)}
        if len(table._slots) < len(table):
            raise InputError(f"{path} holds a key twice: {DAMAGED}")
        table._rows[: len(table)] = kept[:, 2:]
        return table

    def _key(self, previous: int, token: int) -> int:
        return (previous - _ALONE) * self._vocab_size + token

    def _slot(self, key: int) -> int:
        """Returns the slot of a key; a new key in a full table replaces the oldest."""
        slot = self._slots.get(key)
        if slot is None:
            if len(self._keys) < self._capacity:
                slot = len(self._keys)
                self._keys.append(key)
            else:
                slot = self._oldest
                del self._slots[self._keys[slot]]
                self._keys[slot] = key
                self._oldest = (slot + 1) % self._capacity
            self._slots[key] = slot
        return slot
