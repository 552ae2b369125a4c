"""Tensors whose rows are multiplied by numbers that a config has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.models.formats.tensors import BlockRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from edgespec.models.formats.tensors import Blocks, TensorSource


@dataclass(frozen=True, eq=False)
class ScaledTensors:
    """A `TensorSource` some of whose tensors have each row times a factor.

    Attributes:
        tensors: The stored tensors.
        factors: [rows] float32 by the names of such tensors.
    """

    tensors: TensorSource
    factors: Mapping[str, NDArray[np.float32]]

    @property
    def names(self) -> frozenset[str]:
        """See `TensorSource`."""
        return self.tensors.names

    @property
    def nbytes(self) -> int:
        """See `TensorSource`."""
        return self.tensors.nbytes

    def place(self, name: str) -> str:
        """See `TensorSource`."""
        return self.tensors.place(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """See `TensorSource`."""
        return self.tensors.shape(name)

    def read(self, name: str) -> NDArray[np.float32]:
        """See `TensorSource`."""
        return self._multiplied(name, self.tensors.read(name), 0)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """See `TensorSource`."""
        return self._multiplied(name, self.tensors.read_rows(name, start, stop), start)

    def blocks(self, name: str) -> Blocks | None:
        """See `TensorSource`."""
        return self.tensors.blocks(name)

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        """See `TensorSource`; factors go into scales."""
        rows = self.tensors.read_blocks(name, start, stop)
        return BlockRows(rows.levels, self._multiplied(name, rows.scales, start), rows.zeros)

    def encoding(self, name: str) -> str | None:
        """See `TensorSource`; tensors that are multiplied have none."""
        return None if name in self.factors else self.tensors.encoding(name)

    def read_encoded(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """See `TensorSource`."""
        if name in self.factors:
            raise ValueError(f"{name} has no encoding: its rows are multiplied")
        return self.tensors.read_encoded(name, start, stop)

    def _multiplied(
        self, name: str, values: NDArray[np.float32], start: int
    ) -> NDArray[np.float32]:
        factors = self.factors.get(name)
        if factors is None:
            return values
        own = factors[start : start + len(values)]
        scaled: NDArray[np.float32] = values * own.reshape(-1, *[1] * (values.ndim - 1))
        return scaled
