"""Gives each expert's matrices names of their own, where files hold all experts in one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from edgespec.errors import CheckpointError
from edgespec.models.formats.tensors import TensorSource, check_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from edgespec.models.formats.tensors import BlockRows, Blocks

BLOCKS, SCALES = "_blocks", "_scales"
"""Endings of the names of the two tensors that hold a stack in MXFP4."""

# The values of four bits: a sign, two bits of exponent and one of mantissa.
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = np.array([*_POSITIVE, *(-value for value in _POSITIVE)], np.float32)
_BLOCK, _EXPONENT_BIAS = 32, 127
_KEPT = 2  # experts' parts of stacks in memory: as many as threads read


class ByteSource(TensorSource, Protocol):
    """A `TensorSource` that gives tensors of bytes, too."""

    def byte_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor of bytes.

        Raises:
            CheckpointError: There is no such tensor.
            UnsupportedModelError: It holds something else.
        """

    def read_bytes(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Reads rows start to stop of a tensor of bytes."""


Layout = Literal["rows", "columns", "mxfp4"]
"""How a stack of matrices [N, K] lies: as [experts, N, K] (of biases: [experts, N]), as
[experts, K, N], or in MXFP4: bytes [experts, N, K / 32, 16] and exponents [experts, N, K / 32]."""


@dataclass(frozen=True)
class Stack:
    """The matrices [N, K], or biases [N], of all experts of a layer.

    Attributes:
        name: Name of the stored tensor; in MXFP4 without `BLOCKS` and `SCALES`.
        layout: How it lies.
        shape: (experts, N, K), or (experts, N) of biases.
    """

    name: str
    layout: Layout
    shape: tuple[int, ...]

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of its tensors."""
        if self.layout == "mxfp4":
            return self.name + BLOCKS, self.name + SCALES
        return (self.name,)


@dataclass(frozen=True)
class ExpertRows:
    """The rows of a stack that one tensor of one expert consists of.

    Attributes:
        stack: The stack.
        expert: Number of the expert.
        start: Its first row.
        step: Distance to its next row.
        count: Number of its rows.
    """

    stack: Stack
    expert: int
    start: int
    step: int
    count: int

    def rows(self, name: str, start: int, stop: int) -> slice:
        """The rows of the stack that are rows start to stop of the tensor of this name."""
        check_rows(name, start, stop, self.count)
        first = self.start + start * self.step
        return slice(first, first + (stop - start - 1) * self.step + 1, self.step)


class ExpertTensors:
    """A `TensorSource` in which each expert's matrices and biases are tensors of their own.

    Args:
        tensors: The stored tensors.
        parts: The experts' tensors by name.
    """

    def __init__(self, tensors: ByteSource, parts: Mapping[str, ExpertRows]) -> None:
        self._tensors = tensors
        self._parts = parts
        self._slab = lru_cache(_KEPT)(self._read_slab)
        self._packed = lru_cache(_KEPT)(self._read_packed)

    @property
    def names(self) -> frozenset[str]:
        """See `TensorSource`."""
        stored = {name for part in self._parts.values() for name in part.stack.stored}
        return (self._tensors.names - stored) | self._parts.keys()

    @property
    def nbytes(self) -> int:
        """See `TensorSource`."""
        return self._tensors.nbytes

    def place(self, name: str) -> str:
        """See `TensorSource`."""
        part = self._parts.get(name)
        return self._tensors.place(name if part is None else part.stack.stored[0])

    def shape(self, name: str) -> tuple[int, ...]:
        """See `TensorSource`.

        Raises:
            CheckpointError: Also if the stack has another shape than config.json asks for.
        """
        part = self._parts.get(name)
        if part is None:
            return self._tensors.shape(name)
        self._check(part.stack)
        return (part.count, *part.stack.shape[2:])

    def read(self, name: str) -> NDArray[np.float32]:
        """See `TensorSource`."""
        part = self._parts.get(name)
        return self._tensors.read(name) if part is None else self.read_rows(name, 0, part.count)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """See `TensorSource`."""
        part = self._parts.get(name)
        if part is None:
            return self._tensors.read_rows(name, start, stop)
        rows = part.rows(name, start, stop)
        return np.array(self._slab(part.stack, part.expert)[rows], np.float32, order="C")

    def blocks(self, name: str) -> Blocks | None:
        """See `TensorSource`; parts of stacks are given as floats."""
        return None if name in self._parts else self._tensors.blocks(name)

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        """See `TensorSource`."""
        return self._tensors.read_blocks(name, start, stop)

    def encoding(self, name: str) -> str | None:
        """See `TensorSource`; parts of stacks but those in MXFP4 are given as floats."""
        part = self._parts.get(name)
        if part is None:
            return self._tensors.encoding(name)
        return "mxfp4" if part.stack.layout == "mxfp4" else None

    def read_encoded(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """See `TensorSource`."""
        part = self._parts.get(name)
        if part is None:
            return self._tensors.read_encoded(name, start, stop)
        if self.encoding(name) is None:
            raise ValueError(f"{name} has no encoding: it is part of a stack of experts")
        blocks, exponents = self._packed(part.stack, part.expert)
        rows = part.rows(name, start, stop)
        encoded = np.concatenate([exponents[rows][..., None], _by_halves(blocks[rows])], axis=-1)
        return encoded.reshape(stop - start, -1)

    def _read_packed(self, stack: Stack, expert: int) -> tuple[NDArray[np.uint8], ...]:
        """Reads an expert's part of a stack in MXFP4: its bytes and exponents."""
        names = stack.stored
        return tuple(self._tensors.read_bytes(name, expert, expert + 1)[0] for name in names)

    def _read_slab(self, stack: Stack, expert: int) -> NDArray[np.float32]:
        """Reads an expert's part of a stack: [N, K], or [N] of biases."""
        if stack.layout == "mxfp4":
            blocks, exponents = self._packed(stack, expert)
            return _widened(blocks, exponents)
        slab = self._tensors.read_rows(stack.name, expert, expert + 1)[0]
        lies: NDArray[np.float32] = slab.T if stack.layout == "columns" else slab
        return lies

    def _check(self, stack: Stack) -> None:
        experts, rows, *width = stack.shape
        expected: tuple[tuple[int, ...], ...] = (stack.shape,)
        shape = self._tensors.shape
        if stack.layout == "columns":
            expected = ((experts, *width, rows),)
        elif stack.layout == "mxfp4":
            shape = self._tensors.byte_shape
            blocks = (experts, rows, width[0] // _BLOCK)
            expected = ((*blocks, _BLOCK // 2), blocks)
        for name, wanted in zip(stack.stored, expected, strict=True):
            if shape(name) != wanted:
                raise CheckpointError(
                    f"{self._tensors.place(name)}: {name} has shape {list(shape(name))}, "
                    f"config.json asks for {list(wanted)}: use config and weights of the same model"
                )


def _widened(blocks: NDArray[np.uint8], exponents: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Multiplies out MXFP4 (Open Compute Project, 2023): [N, B, 16] and [N, B] give [N, B * 32].

    Each byte has two numbers, the first in its low bits.
    """
    values = np.stack([_VALUES[blocks & 15], _VALUES[blocks >> 4]], axis=-1)
    values = values.reshape(*exponents.shape, _BLOCK)
    scaled: NDArray[np.float32]
    scaled = np.ldexp(values, exponents.astype(np.int32)[..., None] - _EXPONENT_BIAS)
    return scaled.reshape(len(blocks), -1)


def _by_halves(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turns bytes of two neighbouring numbers into those of a number and the 16th behind it."""
    numbers = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], _BLOCK)
    half = _BLOCK // 2
    joined: NDArray[np.uint8] = numbers[..., :half] | numbers[..., half:] << 4
    return joined
