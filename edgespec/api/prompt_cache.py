"""The prompt cache: what texts have computed, on disk, for later texts that begin alike.

A text is stored in blocks of tokens. The key of a block is a hash of all tokens up to its end, and
of the circumstances that bits depend on; so texts share the blocks of a common beginning. A block
has what the target holds of its tokens, and what recurrent layers hold at its end; so a text can go
on behind any block whose predecessors are there.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import takewhile

import numpy as np

from edgespec.api.prompt_blocks import BLOCK, JoinedBlocks
from edgespec.api.prompt_files import DamagedError, PromptFiles
from edgespec.api.snapshots import named
from edgespec.bundle import TARGET
from edgespec.runtime.arrays import Array
from edgespec.runtime.execution.runner import Runner

_MOST_WAITING = 64 << 20  # bytes of blocks that wait for the disk

_log = logging.getLogger(__name__)


class PromptCache:
    """The stored blocks of a loaded target's texts.

    A thread of its own writes them. A text waits while a block is copied in memory, and no longer:
    if too many wait for the disk, its further blocks are not stored.

    Args:
        files: where they are.
        circumstances: tells apart targets whose rows may have other bits; see
            `edgespec.runtime.execution.measurements.circumstances`.
    """

    def __init__(self, files: PromptFiles, circumstances: object) -> None:
        self._files = files
        self._root = hashlib.sha256(repr(circumstances).encode()).hexdigest()
        self._writer = ThreadPoolExecutor(1, "edgespec-prompts")
        self._counting = threading.Lock()
        self._waiting = 0  # bytes
        self._given_up = False

    def begin(self, target: Runner, prompt: Sequence[int]) -> StoredText:
        """Begins a text: restores what is stored of its prompt, if that is more than is held.

        Args:
            target: runner of the text.
            prompt: token ids.
        """
        target.resume(prompt)
        most = (len(prompt) - 1) // BLOCK  # the prompt's last token is always run
        keys = list(takewhile(self._files.has, self._keys(prompt[: most * BLOCK])))
        while len(keys) * BLOCK >= target.length + BLOCK:
            blocks = JoinedBlocks(target.model.role, len(keys))
            read = self._read(blocks, keys)
            if read == len(keys):
                snapshot = blocks.snapshot(prompt[: read * BLOCK])
                if target.fits(snapshot):
                    target.restore(snapshot)
                break
            del keys[read:]
        del keys[target.length // BLOCK :]
        self._files.touch(keys)
        return StoredText(self, target, keys)

    def close(self) -> None:
        """Waits until all blocks are written."""
        self._writer.shutdown()

    def key(self, before: Sequence[str], tokens: Sequence[int]) -> str:
        """Returns the key of the block of these tokens behind others."""
        start = before[-1] if before else self._root
        return hashlib.sha256(start.encode() + np.array(tokens, "<i8").tobytes()).hexdigest()

    def has(self, key: str) -> bool:
        """Whether a block is stored."""
        return self._files.has(key)

    def put(self, text: StoredText, arrays: dict[str, Array]) -> bool:
        """Has the last block of a text written soon; returns whether it may be."""
        size = sum(array.nbytes for array in arrays.values())
        with self._counting:
            full = self._waiting and self._waiting + size > _MOST_WAITING
            if full or self._given_up:
                return False
            self._waiting += size

        def done(_: Future[None]) -> None:
            with self._counting:
                self._waiting -= size

        try:
            self._writer.submit(self._write, text, tuple(text.keys), arrays).add_done_callback(done)
        except RuntimeError:  # the model was closed, or Python shuts down
            return False
        return True

    def _write(self, text: StoredText, keys: Sequence[str], arrays: dict[str, Array]) -> None:
        if text.ended:  # the block before was not written
            return
        try:
            if self._files.write(keys, arrays):
                return
            if len(keys) == 1:
                size = sum(array.nbytes for array in arrays.values()) / (1 << 20)
                self._give_up(f"{BLOCK} tokens take {size:.1f} MiB", "prompt_cache_size")
        except OSError as error:
            self._give_up(error.strerror or str(error), "prompt_cache")
        text.end()

    def _give_up(self, why: str, option: str) -> None:
        """Stores nothing more, and says so once; what is stored can still be read."""
        self._given_up = True
        _log.warning(
            "prompts are not stored in %s any more (%s): make room there, or give another %s",
            self._files.folder, why, option,
        )  # fmt: skip

    def _keys(self, tokens: Sequence[int]) -> Iterator[str]:
        keys: list[str] = []
        for start in range(0, len(tokens), BLOCK):
            keys.append(self.key(keys, tokens[start : start + BLOCK]))
            yield keys[-1]

    def _read(self, blocks: JoinedBlocks, keys: Sequence[str]) -> int:
        """Reads blocks, and returns how many there were before one was missing or damaged."""
        for number, key in enumerate(keys):
            try:
                needed = self._files.read(key, partial(blocks.needs, number))
                blocks.add(number, needed)
            except (DamagedError, KeyError, ValueError):
                return number
        return len(keys)


class StoredText:
    """A text whose blocks are stored as it goes on.

    Args:
        cache: stores them.
        target: the text; it begins with the stored blocks.
        keys: keys of the blocks that are stored.

    Attributes:
        keys: keys of the blocks so far.
        ended: whether no further block is to be stored.
    """

    def __init__(self, cache: PromptCache, target: Runner, keys: Sequence[str]) -> None:
        self._cache = cache
        self._target = target
        self.keys = list(keys)
        self.ended = False

    def look(self) -> None:
        """Has the next block stored if the text has come so far; call it between rounds."""
        while not self.ended and (stop := (len(self.keys) + 1) * BLOCK) <= self._target.length:
            start = stop - BLOCK
            self.keys.append(self._cache.key(self.keys, self._target.tokens[start:stop]))
            if self._cache.has(self.keys[-1]):
                continue
            part = self._target.part(start, stop)
            if part is None or not self._cache.put(self, named(TARGET, part)):
                self.end()
            return  # one at a time, so that no round waits long

    def end(self) -> None:
        """Stores no further block of the text."""
        self.ended = True
