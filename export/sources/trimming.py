"""A draft whose output projection scores the most used tokens only.

Most of a large vocabulary is hardly ever drafted, but its rows of the output projection are read
in every call (FR-Spec: Zhao et al., 2025). Tokens that a draft cannot propose are still chosen by
the target, so the text stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edgespec.models import Checkpoint, Linear
from edgespec.models.tensors import TensorSource

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
        ids = self.ids[start:stop]
        ends = np.flatnonzero(np.diff(ids) > 1) + 1
        runs = [run for run in np.split(ids, ends) if len(run)]
        return np.concatenate(
            [self.tensors.read_rows(self.head, int(run[0]), int(run[-1]) + 1) for run in runs]
        )


def trimmed(checkpoint: Checkpoint, ids: npt.NDArray[np.int64]) -> Checkpoint:
    """Returns a checkpoint whose output projection has these rows of the original one only."""
    decoder = checkpoint.decoder
    head = decoder.lm_head
    return replace(
        checkpoint,
        tensors=TrimmedHead(checkpoint.tensors, head.weight, ids),
        decoder=replace(decoder, lm_head=Linear(_HEAD, head.in_features, len(ids)), tied=False),
    )
