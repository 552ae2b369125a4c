"""Tensors of files by name: where each lies, and a view of its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from edgespec.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies: `nbytes` bytes from `start` in the file.

    Attributes:
        path: The file.
        shape: Its sizes, the rows first.
        start: Offset of its first byte.
        nbytes: Number of its bytes.
    """

    path: Path
    shape: tuple[int, ...]
    start: int
    nbytes: int


E = TypeVar("E", bound=TensorEntry)


class Entries(Generic[E]):
    """What every `TensorSource` of files has in common.

    Args:
        source: The folder or file, for messages.
        entries: All tensors by name.
    """

    def __init__(self, source: Path | str, entries: Mapping[str, E]) -> None:
        self._source = source
        self._entries = entries

    @property
    def names(self) -> frozenset[str]:
        """See `TensorSource`."""
        return frozenset(self._entries)

    @property
    def nbytes(self) -> int:
        """See `TensorSource`."""
        return sum(entry.nbytes for entry in self._entries.values())

    def place(self, name: str) -> str:
        """See `TensorSource`."""
        return str(self.entry(name).path)

    def entry(self, name: str) -> E:
        """Returns where a tensor lies.

        Raises:
            CheckpointError: There is no such tensor.
        """
        try:
            return self._entries[name]
        except KeyError:
            raise CheckpointError(
                f"{self._source} has no tensor {name}: download the checkpoint again, "
                "or use the config that belongs to it"
            ) from None


def read_bytes(path: Path, offset: int, size: int) -> NDArray[np.uint8]:
    """Reads a part of a file.

    Raises:
        CheckpointError: The file has changed since its header was read.
    """
    try:
        found = np.fromfile(path, np.uint8, size, offset=offset)
    except OSError as error:
        raise _changed(path, error) from error
    if len(found) < size:
        raise _changed(path, f"it ends at byte {offset + len(found)}")
    return found


def mapped(
    path: Path, dtype: np.dtype[np.generic], offset: int, shape: tuple[int, ...]
) -> np.memmap[tuple[int, ...], np.dtype[np.generic]]:
    """Maps a part of a file.

    Raises:
        CheckpointError: The file has changed since its header was read.
    """
    try:
        return np.memmap(path, dtype, "r", offset, shape)
    except (OSError, ValueError) as error:
        raise _changed(path, error) from error


def _changed(path: Path, reason: object) -> CheckpointError:
    return CheckpointError(f"{path} changed while it was read ({reason}): download it again")
