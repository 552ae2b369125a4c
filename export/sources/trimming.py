"""A draft whose output projection scores the most used tokens only.

Most of a large vocabulary is hardly ever drafted, but its rows of the output projection are read
in every call (FR-Spec: Zhao et al., 2025). Tokens that a draft cannot propose are still chosen by
the target, so the text stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edgespec.models import Checkpoint, Linear
from edgespec.models.tensors import BlockRows, Blocks, TensorSource, joined

_HEAD = "trimmed_head.weight"


@dataclass(frozen=True)
class TrimmedHead:
    """A `TensorSource` with one more tensor: some rows of the output projection.

    Attributes:
        tensors: the checkpoint's tensors.
        head: name of the whole output projection.
        ids: the rows to keep, ascending.
    """

    tensors: TensorSource
    head: str
    ids: npt.NDArray[np.int64]

    @property
    def names(self) -> frozenset[str]:
        """See `TensorSource`."""
        return self.tensors.names | {_HEAD}

    @property
    def nbytes(self) -> int:
        """See `TensorSource`; the rows that are kept do not count again."""
        return self.tensors.nbytes

    def place(self, name: str) -> str:
        """See `TensorSource`."""
        return self.tensors.place(self.head if name == _HEAD else name)

    def shape(self, name: str) -> tuple[int, ...]:
        """See `TensorSource`."""
        if name == _HEAD:
            return (len(self.ids), *self.tensors.shape(self.head)[1:])
        return self.tensors.shape(name)

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """See `TensorSource`."""
        if name == _HEAD:
            return self.read_rows(name, 0, len(self.ids))
        return self.tensors.read(name)

    def read_rows(self, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        """See `TensorSource`; rows of the output projection are read run by run."""
        if name != _HEAD:
            return self.tensors.read_rows(name, start, stop)
        runs = self._runs(start, stop)
        return np.concatenate([self.tensors.read_rows(self.head, *run) for run in runs])

    def blocks(self, name: str) -> Blocks | None:
        """See `TensorSource`."""
        return self.tensors.blocks(self.head if name == _HEAD else name)

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        """See `TensorSource`; rows of the output projection are read run by run."""
        if name != _HEAD:
            return self.tensors.read_blocks(name, start, stop)
        runs = self._runs(start, stop)
        return joined([self.tensors.read_blocks(self.head, *run) for run in runs])

    def _runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yields start and stop of each run of consecutive rows that are kept."""
        ids = self.ids[start:stop]
        for run in np.split(ids, np.flatnonzero(np.diff(ids) > 1) + 1):
            if len(run):
                yield int(run[0]), int(run[-1]) + 1


def trimmed(checkpoint: Checkpoint, ids: npt.NDArray[np.int64]) -> Checkpoint:
    """Returns a checkpoint whose output projection has these rows of the original one only."""
    decoder = checkpoint.decoder
    head = decoder.lm_head
    return replace(
        checkpoint,
        tensors=TrimmedHead(checkpoint.tensors, head.weight, ids),
        decoder=replace(decoder, lm_head=Linear(_HEAD, head.in_features, len(ids)), tied=False),
    )
