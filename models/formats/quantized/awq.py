"""Reads matrices that AutoAWQ has quantized in its GEMM layout (AWQ: Lin et al., 2024).

`qweight` [K, N / 8] and `qzeros` [groups, N / 8] have eight numbers of 4 bits in a 32-bit word:
columns 0, 2, 4, 6, 1, 3, 5, 7, from the lowest bits on. `scales` is [groups, N].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.formats.quantized.matrix import (
    QuantizedMatrix,
    modules,
    require_shape,
    unpacked,
)
from edgespec.models.formats.tensors import BlockRows, Blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.safetensors_folder import SafetensorsFolder

_BITS, _IN_WORD = 4, 8
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word each column is


def awq_matrices(tensors: SafetensorsFolder, config: ConfigFields) -> dict[str, QuantizedMatrix]:
    """The quantized matrices of a folder, by the names of the tensors that they stand for.

    Raises:
        UnsupportedModelError: A field of the config asks for something else.
        CheckpointError: A tensor is missing or has another shape.
    """
    if config.integer("bits") != _BITS:
        raise config.unsupported("bits", f"use a checkpoint in {_BITS} bits")
    if str(config.get("version") or "gemm").lower() != "gemm":
        raise config.unsupported("version", "use a checkpoint in the layout gemm")
    size = None if config.get("group_size") == -1 else config.integer("group_size")
    return {
        f"{module}weight": _matrix(tensors, module, size) for module in modules(tensors, "qweight")
    }


def _matrix(tensors: SafetensorsFolder, module: str, size: int | None) -> QuantizedMatrix:
    parts = tuple(module + part for part in ("qweight", "qzeros", "scales"))
    qweight, qzeros, scales = parts
    width, words = tensors.integers(qweight, np.int32, 2).shape
    rows = words * _IN_WORD
    size = size or width
    groups = -(-width // size)
    require_shape(tensors, qzeros, (groups, words))
    require_shape(tensors, scales, (groups, rows))

    def numbers(name: str, start: int, stop: int) -> NDArray[np.uint8]:
        first = start // _IN_WORD
        last = -(-stop // _IN_WORD)
        found = unpacked(tensors.integers(name, np.int32, 2)[:, first:last], _BITS, axis=1)
        ordered = found.reshape(len(found), -1, _IN_WORD)[:, :, _PLACES].reshape(len(found), -1)
        rows = ordered[:, start - first * _IN_WORD : stop - first * _IN_WORD]
        return np.ascontiguousarray(rows.T)

    def read(start: int, stop: int) -> BlockRows:
        factors = np.asarray(tensors.stored(scales)[:, start:stop], np.float32)
        levels = numbers(qweight, start, stop)
        zeros = numbers(qzeros, start, stop)
        return BlockRows(levels, factors.T, zeros)

    return QuantizedMatrix((rows, width), parts, Blocks(_BITS, size), read)
