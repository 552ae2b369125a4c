"""The prompt cache: what sequences have read, on disk, for later ones that begin alike.

A sequence is stored in blocks of tokens. The key of a block is a hash of all tokens up to its end,
and of the circumstances that bits depend on; so sequences share the blocks of a common beginning.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from edgespec.llm.prompt_files import DamagedError, PromptFiles
from edgespec.runtime.arrays import Array
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.system.processes import listen_for_forks

BLOCK = 128
"""Tokens of a block. What a prompt has behind its last whole block is computed again."""

_MOST_WAITING = 64 << 20  # bytes of blocks that wait for the disk

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _StoredSequence:
    """A sequence whose blocks are stored: the keys of those so far; whether no more are to be."""

    keys: list[str]
    ended: bool = False


class StoredPrompts:
    """Stores the blocks of a target's sequences; see `SequenceStore`.

    A thread of its own writes them. A pass waits while a block is copied in memory, and no longer:
    if too many wait for the disk, the further blocks of a sequence are not stored.

    Args:
        files: where they are.
        circumstances: its `repr` tells apart targets whose rows may have other bits.
    """

    def __init__(self, files: PromptFiles, circumstances: object) -> None:
        self._files = files
        self._root = hashlib.sha256(repr(circumstances).encode()).hexdigest()
        self.after_fork()
        self._sequences = dict[TokenSequence, _StoredSequence]()
        self._given_up = False
        listen_for_forks(self)

    def after_fork(self) -> None:
        """See `ForkListener`. What waits to be written is left to the other process."""
        self._writer = ThreadPoolExecutor(1, "edgespec-prompts")
        self._counting = threading.Lock()
        self._waiting = 0  # bytes

    def begin(self, sequence: TokenSequence) -> int:
        """See `SequenceStore`. Blocks are read if they hold more than the sequence has already."""
        before = sequence.length
        keys = list(takewhile(self._files.has, self._keys(sequence)))
        if len(keys) * BLOCK >= before + BLOCK:
            while sequence.length < len(keys) * BLOCK:
                if not self._read(sequence, keys[sequence.length // BLOCK]):
                    break
        del keys[sequence.length // BLOCK :]
        self._files.touch(keys)
        self._sequences[sequence] = _StoredSequence(keys)
        return sequence.length - before

    def look(self, sequence: TokenSequence) -> None:
        """See `SequenceStore`. One block at a time is stored, so that no pass waits long."""
        stored = self._sequences[sequence]
        while not stored.ended and (stop := (len(stored.keys) + 1) * BLOCK) <= sequence.length:
            stored.keys.append(self._key(stored.keys, sequence, stop))
            if self._files.has(stored.keys[-1]):
                continue
            rows = sequence.pool.read(sequence.slots[stop - BLOCK : stop].tolist())
            self._put(stored, {name: np.ascontiguousarray(each) for name, each in rows.items()})
            return

    def end(self, sequence: TokenSequence) -> None:
        """See `SequenceStore`."""
        self._sequences.pop(sequence, None)

    def close(self) -> None:
        """Waits until all blocks are written."""
        self._writer.shutdown()

    def _read(self, sequence: TokenSequence, key: str) -> bool:
        """Reads what a sequence lacks of its next block; returns whether the block is sound."""
        known = sequence.length % BLOCK
        slots = sequence.pool.take(BLOCK - known)
        try:
            rows = self._files.read(key, lambda _: True)
            sequence.pool.write(slots, {name: each[:, :, known:] for name, each in rows.items()})
        except (DamagedError, IndexError, ValueError):  # it is computed, and then written
            sequence.pool.free(slots)
            return False
        except BaseException:
            sequence.pool.free(slots)
            raise
        sequence.append(slots)
        return True

    def _put(self, stored: _StoredSequence, rows: dict[str, Array]) -> None:
        """Has the last block of a sequence written soon, or ends storing it."""
        size = sum(array.nbytes for array in rows.values())
        with self._counting:
            full = self._waiting and self._waiting + size > _MOST_WAITING
            if full or self._given_up:
                stored.ended = True
                return
            self._waiting += size

        def done(_: Future[None]) -> None:
            with self._counting:
                self._waiting -= size

        try:
            written = self._writer.submit(self._write, stored, tuple(stored.keys), rows)
        except RuntimeError:  # the model was closed, or Python shuts down
            stored.ended = True
        else:
            written.add_done_callback(done)

    def _write(self, stored: _StoredSequence, keys: Sequence[str], rows: dict[str, Array]) -> None:
        if stored.ended:  # the block before was not written
            return
        try:
            if self._files.write(keys, rows):
                return
            if len(keys) == 1:
                size = sum(array.nbytes for array in rows.values()) / (1 << 20)
                self._give_up(f"{BLOCK} tokens take {size:.1f} MiB", "prompt_cache_size")
        except OSError as error:
            self._give_up(error.strerror or str(error), "prompt_cache")
        stored.ended = True

    def _give_up(self, why: str, option: str) -> None:
        """Stores nothing more, and says so once; what is stored can still be read."""
        self._given_up = True
        _log.warning(
            "prompts are not stored in %s any more (%s): make room there, or give another %s",
            self._files.folder,
            why,
            option,
        )

    def _keys(self, sequence: TokenSequence) -> Iterator[str]:
        """Yields the keys of whole blocks before the last token."""
        keys: list[str] = []
        for stop in range(BLOCK, len(sequence.tokens), BLOCK):
            keys.append(self._key(keys, sequence, stop))
            yield keys[-1]

    def _key(self, before: Sequence[str], sequence: TokenSequence, stop: int) -> str:
        start = before[-1] if before else self._root + sequence.salt
        tokens = np.array(sequence.keys[stop - BLOCK : stop], "<i8")
        return hashlib.sha256(start.encode() + tokens.tobytes()).hexdigest()
