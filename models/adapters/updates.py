"""What an adapter adds to a model: a product of two thin matrices for each of some matrices.

Hu et al., LoRA, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class LowRankUpdate:
    """What is added to a matrix W [out, in]: b a.

    Attributes:
        a: [rank, in] float32.
        b: [out, rank] float32, the adapter's own scale in it.
    """

    a: NDArray[np.float32]
    b: NDArray[np.float32]

    @classmethod
    def of(
        cls, where: str, a: NDArray[np.float32], b: NDArray[np.float32], scale: float
    ) -> LowRankUpdate:
        """Returns the update of two stored matrices, after a check.

        Args:
            where: the file and the matrix, for messages.
            a: see above.
            b: [out, rank] float32, without the scale.
            scale: the scale.

        Raises:
            CheckpointError: They do not fit each other, or contain infinity or NaN.
        """
        if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1] or not a.size or not b.size:
            raise CheckpointError(
                f"{where} has matrices of {list(a.shape)} and {list(b.shape)}, which do not fit "
                "each other: download the adapter again"
            )
        scaled = b * np.float32(scale)
        if not (np.isfinite(a).all() and np.isfinite(scaled).all()):
            raise CheckpointError(f"{where} contains infinity or NaN: download the adapter again")
        return cls(a, scaled)

    def rows(self, rows: NDArray[np.int64] | slice) -> LowRankUpdate:
        """Returns the update of these rows of W, in this order."""
        return LowRankUpdate(self.a, self.b[rows])


@dataclass(frozen=True)
class Adapter:
    """An adapter in a file or folder.

    Attributes:
        source: The file or folder.
        updates: What is added to which matrix, by the matrix's name in transformers.
        interleaved: Whether dimensions of queries and keys that turn together are neighbours, as
            in GGUF files of some architectures.
    """

    source: str
    updates: Mapping[str, LowRankUpdate]
    interleaved: bool = False
