"""Where a checkpoint's weights come from: the protocol that a reader of a file format fulfils."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from edgespec.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_COMPARED_ROWS = 1024


@dataclass(frozen=True)
class Blocks:
    """How a file holds a quantized matrix.

    Attributes:
        bits: Bits of a weight's level, at most 8.
        size: Number of consecutive weights of a row that share a scale, from the row's start on;
            the last block of a row may be shorter.
    """

    bits: int
    size: int


@dataclass(frozen=True)
class BlockRows:
    """Rows of a quantized matrix as a file holds them: weight = (level - zero) * scale.

    Attributes:
        levels: [rows, width] uint8, less than 2 ** bits.
        scales: [rows, blocks] float32.
        zeros: [rows, blocks] uint8, less than 2 ** bits; None: all are 2 ** (bits - 1).
    """

    levels: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8] | None


class TensorSource(Protocol):
    """The tensors of a checkpoint by name; no weight is read before it is asked for.

    All values are given as float32, whatever the file holds. Of a matrix that the file holds in
    quantized blocks, the blocks can be had, too, and of most matrices the bytes. A format is
    supported by one class of this shape, see `edgespec.models.formats.safetensors_folder`.
    """

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""

    def place(self, name: str) -> str:
        """The file that holds a tensor, for messages.

        Raises:
            CheckpointError: There is no such tensor.
        """

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor.

        Raises:
            CheckpointError: There is no such tensor.
            UnsupportedModelError: It is stored in a form that cannot be read.
        """

    def read(self, name: str) -> NDArray[np.float32]:
        """Reads a whole tensor, in its own shape, into memory of the caller's.

        Raises:
            CheckpointError: There is no such tensor, or the file has changed since it was opened.
            UnsupportedModelError: It is stored in a form that cannot be read.
        """

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Reads rows start to stop of a tensor, [stop - start, ...], into memory of the caller's.

        Raises:
            CheckpointError: There is no such tensor, or the file has changed since it was opened.
            UnsupportedModelError: It is stored in a form that cannot be read.
            ValueError: The tensor has no such rows.
        """

    def blocks(self, name: str) -> Blocks | None:
        """The form in which the file holds a matrix, if `read_blocks` gives it; else None.

        Raises:
            CheckpointError: There is no such tensor.
        """

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        """Reads rows start to stop of a matrix that `blocks` says to be in blocks.

        `read_rows` gives the same weights, multiplied out in float32.

        Raises:
            CheckpointError: The file is damaged, or has changed since it was opened.
            ValueError: The matrix has no such rows, or is not in blocks.
        """

    def encoding(self, name: str) -> str | None:
        """The encoding in which `read_encoded` gives a matrix; None if it gives none.

        It is called as in llama.cpp, in lower case: `q4_k`, and of plain numbers `f32`, `f16` or
        `bf16`.

        Raises:
            CheckpointError: There is no such tensor.
        """

    def read_encoded(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Reads rows start to stop of a matrix that has an `encoding`, [stop - start, bytes].

        `read_rows` gives the same weights. In damaged files some are not finite.

        Raises:
            CheckpointError: There is no such tensor, or the file has changed since it was opened.
            ValueError: The matrix has no such rows, or no encoding.
        """


def check_rows(name: str, start: int, stop: int, rows: int) -> None:
    """Checks that a tensor of so many rows has rows start to stop, at least one.

    Raises:
        ValueError: It has not.
    """
    if not 0 <= start < stop <= rows:
        raise ValueError(f"rows {start}:{stop} of {name}, which has {rows}")


def check_shapes(tensors: TensorSource, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Checks that all expected tensors can be read and have the expected shapes.

    Raises:
        UnsupportedModelError: A tensor is stored in a form that cannot be read.
        CheckpointError: A tensor is missing or has another shape.
    """
    for name, shape in expected.items():
        found = tensors.shape(name)
        if found != shape:
            raise CheckpointError(
                f"{tensors.place(name)}: {name} has shape {list(found)}, config.json asks for "
                f"{list(shape)}: use config and weights of the same model"
            )


def equal_tensors(tensors: TensorSource, first: str, second: str) -> bool:
    """Whether two tensors have the same shape and values; some rows at a time are read."""
    shape = tensors.shape(first)
    return shape == tensors.shape(second) and all(
        np.array_equal(
            tensors.read_rows(first, start, min(start + _COMPARED_ROWS, shape[0])),
            tensors.read_rows(second, start, min(start + _COMPARED_ROWS, shape[0])),
        )
        for start in range(0, shape[0], _COMPARED_ROWS)
    )


def block_weights(rows: BlockRows, blocks: Blocks) -> NDArray[np.float32]:
    """The weights of rows in blocks, [rows, width] float32."""
    width = rows.levels.shape[1]
    zeros: NDArray[np.float32] | np.float32 = np.float32(2 ** (blocks.bits - 1))
    if rows.zeros is not None:
        zeros = np.repeat(rows.zeros, blocks.size, axis=1)[:, :width].astype(np.float32)
    weights: NDArray[np.float32] = rows.levels - zeros
    weights *= np.repeat(rows.scales, blocks.size, axis=1)[:, :width]
    return weights
