"""Reads matrices in 8-bit floats (e4m3) with a scale for each block, each row or the whole matrix.

Checkpoints of DeepSeek and Qwen have `weight_scale_inv` for blocks of 128 x 128, which in spite of
its name is a factor of the weights; others have `weight_scale`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models.formats.quantized.matrix import QuantizedMatrix, modules, require_shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.safetensors_folder import SafetensorsFolder

_FP8 = "F8_E4M3"
_SCALES = ("weight_scale_inv", "weight_scale")


def fp8_matrices(tensors: SafetensorsFolder, config: ConfigFields) -> dict[str, QuantizedMatrix]:
    """The quantized matrices of a folder, by the names of the tensors that they stand for.

    Raises:
        UnsupportedModelError: A tensor holds several matrices.
        CheckpointError: A scale is missing or has another shape.
    """
    return scaled_matrices(tensors, _SCALES, block_of(config, "weight_block_size"))


def scaled_matrices(
    tensors: SafetensorsFolder,
    scales: tuple[str, ...],
    block: tuple[int, int] | None,
    others: Iterable[QuantizedMatrix] = (),
) -> dict[str, QuantizedMatrix]:
    """All matrices in 8-bit floats, by the names of their tensors.

    Args:
        tensors: The folder's tensors.
        scales: Names that a scale's tensor may have.
        block: See `_matrix`.
        others: Matrices whose scales may be in 8-bit floats.

    Raises:
        UnsupportedModelError: A tensor holds several matrices, as those of all experts of a layer.
        CheckpointError: A scale is missing or has another shape.
    """
    parts = {part for each in others for part in each.parts}
    stored = {name for name in tensors.names - parts if tensors.dtype(name) == _FP8}
    found = {f"{module}weight": module for module in modules(tensors, "weight")}
    for name in sorted(stored):
        if name not in found or tensors.stored(name).ndim > 2:
            raise UnsupportedModelError(
                f"{tensors.place(name)}: {name} has shape {list(tensors.stored(name).shape)} in "
                "8-bit floats, which is not supported: use a checkpoint that holds each expert's "
                "matrices by themselves, or the original one in bf16, fp16 or fp32"
            )
    return {name: _matrix(tensors, found[name], scales, block) for name in stored}


def block_of(config: ConfigFields, name: str) -> tuple[int, int] | None:
    """Rows and columns of a block that has a scale; None if the config names none.

    Raises:
        CheckpointError: The field is something else.
    """
    if config.get(name) is None:
        return None
    rows, columns = config.numbers(name, 2)
    if rows % 1 or columns % 1:
        raise config.invalid(name, "must be two whole numbers")
    return int(rows), int(columns)


def _matrix(
    tensors: SafetensorsFolder,
    module: str,
    scales: tuple[str, ...],
    block: tuple[int, int] | None,
) -> QuantizedMatrix:
    """A matrix of 8-bit floats.

    Args:
        tensors: The folder's tensors.
        module: The module's name, with the dot behind it.
        scales: Names that the scale's tensor may have.
        block: Rows and columns of a block; None: there is a scale for each row, or one for all.

    Raises:
        CheckpointError: The scale is missing or has another shape.
    """
    weight = f"{module}weight"
    scale = next((module + each for each in scales if module + each in tensors.names), None)
    if scale is None:
        raise CheckpointError(
            f"{tensors.place(weight)}: {weight} is in 8-bit floats, but {module}{scales[0]} is "
            "missing: download the checkpoint again"
        )
    shape = tensors.stored(weight).shape
    if len(shape) != 2:
        raise CheckpointError(
            f"{tensors.place(weight)}: {weight} has shape {list(shape)}, not that of a matrix: "
            "use config and weights of the same model"
        )
    rows, width = shape
    wanted: list[tuple[int, ...]] = [(), (1,), (1, 1), (rows,), (rows, 1)]
    if block is not None:
        wanted.append((-(-rows // block[0]), -(-width // block[1])))
    require_shape(tensors, scale, *wanted)
    factors = np.asarray(tensors.stored(scale), np.float32)
    by_block = block is not None and factors.shape == wanted[-1]
    tall, wide = block if by_block and block is not None else (1, width)
    factors = factors.reshape(-1, factors.shape[-1] if by_block else 1)
    if not by_block and len(factors) == 1:
        tall = rows

    def read(start: int, stop: int) -> NDArray[np.float32]:
        weights = np.asarray(tensors.stored(weight)[start:stop], np.float32)
        own = factors[np.arange(start, stop) // tall]
        weights *= np.repeat(own, wide, axis=1)[:, :width]
        return weights

    return QuantizedMatrix((rows, width), (weight, scale), None, read)
