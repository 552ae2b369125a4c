"""Quantized matrices of a folder, read some rows at a time, and the source that gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError
from edgespec.models.formats.tensors import BlockRows, Blocks, block_weights, check_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from edgespec.models.formats.safetensors_folder import SafetensorsFolder

# What a runtime with 8-bit activations or caches reads; edgespec finds its own scales.
_OF_ACTIVATIONS = (
    ".input_scale", ".input_global_scale", ".input_zero_point", ".activation_scale",
    ".output_scale", ".q_scale", ".k_scale", ".v_scale",
)  # fmt: skip


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix that several tensors of a file make up.

    Attributes:
        shape: [rows, width].
        parts: Names of the tensors, the first of which stands for it in messages.
        form: Its blocks; None if it has none that `BlockRows` could hold.
        read: Reads rows start to stop: `BlockRows` if there is a form, else float32.
        encoding: See `TensorSource.encoding`.
        read_encoded: Reads rows start to stop of an encoding.
    """

    shape: tuple[int, int]
    parts: tuple[str, ...]
    form: Blocks | None
    read: Callable[[int, int], BlockRows | NDArray[np.float32]]
    encoding: str | None = None
    read_encoded: Callable[[int, int], NDArray[np.uint8]] | None = None


class QuantizedFolder:
    """A `TensorSource` of a folder in which some matrices are made up of several tensors.

    Args:
        tensors: The folder's tensors as they are stored.
        matrices: The quantized matrices by the name of the tensor that they stand for.
    """

    def __init__(self, tensors: SafetensorsFolder, matrices: Mapping[str, QuantizedMatrix]) -> None:
        self._tensors = tensors
        self._matrices = matrices
        parts = {part for matrix in matrices.values() for part in matrix.parts}
        plain = {name for name in tensors.names - parts if not name.endswith(_OF_ACTIVATIONS)}
        self._names = frozenset(plain) | matrices.keys()

    @property
    def names(self) -> frozenset[str]:
        """See `TensorSource`."""
        return self._names

    @property
    def nbytes(self) -> int:
        """See `TensorSource`."""
        return self._tensors.nbytes

    def place(self, name: str) -> str:
        """See `TensorSource`."""
        matrix = self._matrices.get(name)
        return self._tensors.place(name if matrix is None else matrix.parts[0])

    def shape(self, name: str) -> tuple[int, ...]:
        """See `TensorSource`."""
        matrix = self._matrices.get(name)
        return self._tensors.shape(name) if matrix is None else matrix.shape

    def read(self, name: str) -> NDArray[np.float32]:
        """See `TensorSource`."""
        matrix = self._matrices.get(name)
        return (
            self._tensors.read(name) if matrix is None else self.read_rows(name, 0, matrix.shape[0])
        )

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """See `TensorSource`."""
        matrix = self._matrices.get(name)
        if matrix is None:
            return self._tensors.read_rows(name, start, stop)
        rows = _read(name, matrix, start, stop)
        if isinstance(rows, BlockRows):
            assert matrix.form is not None
            return block_weights(rows, matrix.form)
        return rows

    def blocks(self, name: str) -> Blocks | None:
        """See `TensorSource`."""
        matrix = self._matrices.get(name)
        return self._tensors.blocks(name) if matrix is None else matrix.form

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        """See `TensorSource`."""
        matrix = self._matrices.get(name)
        if matrix is None:
            return self._tensors.read_blocks(name, start, stop)
        rows = _read(name, matrix, start, stop)
        if not isinstance(rows, BlockRows):
            raise ValueError(f"{name} is not in blocks: it has a scale for other parts")
        return rows

    def encoding(self, name: str) -> str | None:
        """See `TensorSource`; what several tensors make up may have one."""
        matrix = self._matrices.get(name)
        return self._tensors.encoding(name) if matrix is None else matrix.encoding

    def read_encoded(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """See `TensorSource`."""
        matrix = self._matrices.get(name)
        if matrix is None:
            return self._tensors.read_encoded(name, start, stop)
        if matrix.read_encoded is None:
            raise ValueError(f"{name} has no encoding: several tensors make it up")
        check_rows(name, start, stop, matrix.shape[0])
        return matrix.read_encoded(start, stop)


def _read(
    name: str, matrix: QuantizedMatrix, start: int, stop: int
) -> BlockRows | NDArray[np.float32]:
    check_rows(name, start, stop, matrix.shape[0])
    return matrix.read(start, stop)


@dataclass(frozen=True)
class Groups:
    """Which scale each column of a matrix has.

    Attributes:
        size: Columns of a group.
        of: [width] the group of each column. With act-order they are in any order.
    """

    size: int
    of: NDArray[np.int64]


def grouped(
    shape: tuple[int, int],
    parts: tuple[str, ...],
    bits: int,
    groups: Groups,
    read: Callable[[int, int], BlockRows],
) -> QuantizedMatrix:
    """A matrix whose scales belong to groups of columns; it has blocks if they are in one piece.

    Args:
        shape: The matrix's shape.
        parts: See `QuantizedMatrix`.
        bits: Bits of a weight.
        groups: The groups of columns.
        read: Reads rows start to stop, with scales and zero points of all groups by number.
    """
    order = groups.of[:: groups.size]
    if np.array_equal(groups.of, np.repeat(order, groups.size)[: shape[1]]):
        return QuantizedMatrix(
            shape, parts, Blocks(bits, groups.size), lambda *a: _chosen(read(*a), order)
        )

    def multiplied(start: int, stop: int) -> NDArray[np.float32]:
        return block_weights(_chosen(read(start, stop), groups.of), Blocks(bits, 1))

    return QuantizedMatrix(shape, parts, None, multiplied)


def _chosen(rows: BlockRows, groups: NDArray[np.int64]) -> BlockRows:
    zeros = None if rows.zeros is None else rows.zeros[:, groups]
    return BlockRows(rows.levels, rows.scales[:, groups], zeros)


def read_groups(tensors: SafetensorsFolder, name: str, width: int, count: int) -> NDArray[np.int64]:
    """Reads which of `count` groups each column is in.

    Raises:
        CheckpointError: The tensor is missing, or has another shape or other numbers.
    """
    require_shape(tensors, name, (width,))
    found = tensors.read_integers(name)
    if found.min() < 0 or found.max() >= count:
        raise CheckpointError(
            f"{tensors.place(name)}: {name} has numbers from {found.min()} to {found.max()}, "
            f"but there are {count} groups: download the checkpoint again"
        )
    return found


def modules(tensors: SafetensorsFolder, part: str) -> list[str]:
    """Names of the modules that have a tensor of this name, with the dot behind them."""
    return sorted(name.removesuffix(part) for name in tensors.names if name.endswith(f".{part}"))


def require_shape(tensors: SafetensorsFolder, name: str, *wanted: tuple[int, ...]) -> None:
    """Checks that a part of a quantized matrix has one of the shapes that the other parts ask for.

    Raises:
        CheckpointError: It has another shape, or is missing.
    """
    found = tensors.stored(name).shape
    if found not in wanted:
        allowed = " or ".join(str(list(each)) for each in wanted)
        raise CheckpointError(
            f"{tensors.place(name)}: {name} has shape {list(found)}, its matrix asks for "
            f"{allowed}: use config and weights of the same model, or download both again"
        )


def unpacked(words: NDArray[np.int32], bits: int, axis: int) -> NDArray[np.uint8]:
    """Unsigned integers of 32-bit words, the lowest bits first.

    Args:
        words: Packed integers, a matrix.
        bits: 4 or 8.
        axis: The axis that the integers of a word follow one another on.
    """
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    spread = np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts
    numbers = (spread & np.uint32(2**bits - 1)).astype(np.uint8)
    rows, columns = words.shape
    if axis == 1:
        return numbers.reshape(rows, -1)
    return numbers.transpose(0, 2, 1).reshape(-1, columns)
