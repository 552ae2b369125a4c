"""What a target computed for texts, on disk; a shard holds that of some texts."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import InputError
from edgespec.system.files import sync_file

_TOKENS = "tokens"
_FEATURES = "features"
_IDS = "top_ids"
_LOGITS = "top_logits"


@dataclass(frozen=True)
class TrainingWindow:
    """A text and what the target computed for it.

    Attributes:
        tokens: [L] int32.
        features: [L, F] float16.
        top_ids: [L, K] int32.
        top_logits: [L, K] float16, less the largest of each row.
    """

    tokens: npt.NDArray[np.int32]
    features: npt.NDArray[np.float16]
    top_ids: npt.NDArray[np.int32]
    top_logits: npt.NDArray[np.float16]


class Shards:
    """A folder of shards within a limit.

    A shard's tokens stay, since they may have cost a target's time; its features are deleted when
    others need their room, the least recently used first.

    Args:
        folder: folder of the shards, created if needed.
        limit: bytes that all features may take.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        with _room_for(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".partial-*"):
            shutil.rmtree(left, ignore_errors=True)
        self._used = [int(each.name) for each in sorted(self._whole(), key=_age)]

    def texts(self, number: int) -> tuple[list[list[int]], int]:
        """Returns the tokens of a shard's texts, none if never stored, and how many were read."""
        file = self._folder / f"{number}.npz"
        if not file.is_file():
            return [], 0
        with np.load(file) as stored:
            parts = np.split(stored[_TOKENS], stored["ends"][:-1])
            return [part.tolist() for part in parts], int(stored["read"])

    def put_texts(self, number: int, texts: Sequence[Sequence[int]], read: int) -> None:
        """Stores the tokens of a shard's texts, and how many of them were read once."""
        file = self._folder / f"{number}.npz"
        partial = self._folder / f"{number}.partial.npz"
        ends = np.cumsum([len(text) for text in texts])
        with _room_for(self._folder):
            tokens = np.concatenate(texts).astype(np.int32)
            np.savez(partial, ends=ends, tokens=tokens, read=np.array(read))
            sync_file(partial)
            partial.replace(file)

    def put(self, number: int, windows: Sequence[TrainingWindow]) -> None:
        """Stores a shard in place of the last one, unless it is larger than the limit.

        Raises:
            InputError: if the disk is full.
        """
        arrays = {
            name: np.concatenate([getattr(window, name) for window in windows])
            for name in (_TOKENS, _FEATURES, _IDS, _LOGITS)
        }
        arrays["ends"] = np.cumsum([len(window.tokens) for window in windows])
        size = sum(array.nbytes for array in arrays.values())
        self._drop(number)
        if size > self._limit:
            return
        self._make_room(size)
        partial = self._folder / f".partial-{number}"
        with _room_for(self._folder):
            try:
                partial.mkdir()
                for name, array in arrays.items():
                    np.save(partial / f"{name}.npy", array)
                    sync_file(partial / f"{name}.npy")
                partial.rename(self._folder / str(number))
            except OSError:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        self._used.append(number)

    def get(self, number: int) -> list[TrainingWindow] | None:
        """Returns the windows of a shard, read when they are used; None if it is not there."""
        folder = self._folder / str(number)
        if number not in self._used:
            return None
        self._used.remove(number)
        self._used.append(number)
        arrays: dict[str, Any] = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r")
            for name in (_TOKENS, _FEATURES, _IDS, _LOGITS)
        }
        ends = np.load(folder / "ends.npy").tolist()
        return [
            TrainingWindow(**{name: array[start:end] for name, array in arrays.items()})
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]

    def delete(self, number: int) -> None:
        """Deletes a shard, its tokens too."""
        self._drop(number)
        (self._folder / f"{number}.npz").unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        while self._used and self._size() + size > self._limit:
            self._drop(self._used[0])

    def _drop(self, number: int) -> None:
        """Deletes a shard's features, if they are there."""
        if number in self._used:
            self._used.remove(number)
            shutil.rmtree(self._folder / str(number), ignore_errors=True)

    def _size(self) -> int:
        return sum(file.stat().st_size for each in self._whole() for file in each.iterdir())

    def _whole(self) -> list[Path]:
        return [each for each in self._folder.iterdir() if each.is_dir() and each.name.isdecimal()]


@contextmanager
def _room_for(folder: Path) -> Iterator[None]:
    """Turns a full disk into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"{folder}: the disk is full: free some space, or give a smaller --disk; the same "
                "command goes on from here"
            ) from error
        raise


def _age(folder: Path) -> int:
    return folder.stat().st_mtime_ns
