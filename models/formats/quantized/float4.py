"""Reads matrices in NVFP4, as NVIDIA's ModelOpt and llm-compressor write them.

Two neighbouring weights are in a byte, [N, K / 2]. `weight_scale` [N, K / 16] is in 8-bit floats
(e4m3), and there is a number of the whole matrix: ModelOpt's `weight_scale_2` is a factor of the
weights, and `weight_global_scale` of compressed-tensors what they were multiplied by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError
from edgespec.models.formats import nvfp4
from edgespec.models.formats.quantized.fp8 import scaled_matrices
from edgespec.models.formats.quantized.matrix import QuantizedMatrix, modules, require_shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.safetensors_folder import SafetensorsFolder

_ALGORITHMS = ("NVFP4", "FP8", "MIXED_PRECISION")
_FACTOR = "weight_scale_2"
_SIGN = 128
_NAN = 127


def modelopt_matrices(
    tensors: SafetensorsFolder, config: ConfigFields
) -> dict[str, QuantizedMatrix]:
    """The quantized matrices of a folder, by the names of the tensors that they stand for.

    Raises:
        UnsupportedModelError: The config asks for something else.
        CheckpointError: A tensor is missing or has another shape.
    """
    if config.get("quant_algo") not in _ALGORITHMS:
        raise config.unsupported("quant_algo", f"use one of {', '.join(_ALGORITHMS)}")
    found = float4_matrices(tensors, modules(tensors, _FACTOR), "weight", _FACTOR)
    return found | scaled_matrices(tensors, ("weight_scale",), None, found.values())


def float4_matrices(
    tensors: SafetensorsFolder, names: Iterable[str], packed: str, whole: str
) -> dict[str, QuantizedMatrix]:
    """Matrices in NVFP4 by the names of the tensors that they stand for.

    Args:
        tensors: The folder's tensors.
        names: The modules' names, with the dot behind them.
        packed: What the weights are called in a module.
        whole: The same of the number of the whole matrix.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    return {f"{each}weight": _matrix(tensors, each, packed, whole) for each in names}


def _matrix(tensors: SafetensorsFolder, module: str, packed: str, whole: str) -> QuantizedMatrix:
    weight, scale, factor = (module + each for each in (packed, "weight_scale", whole))
    shape = tensors.byte_shape(weight)
    if len(shape) != 2:
        raise CheckpointError(
            f"{tensors.place(weight)}: {weight} has shape {list(shape)}, not that of a matrix: "
            "use config and weights of the same model"
        )
    rows, half = shape
    require_shape(tensors, scale, (rows, 2 * half // nvfp4.PART))
    require_shape(tensors, factor, (), (1,))
    if tensors.dtype(scale) != "F8_E4M3" or 2 * half % nvfp4.BLOCK:
        raise CheckpointError(
            f"{tensors.place(weight)}: {weight} has rows of {2 * half} weights with scales in "
            f"{tensors.dtype(scale)}, not of a multiple of {nvfp4.BLOCK} with scales in F8_E4M3: "
            "use a checkpoint in NVFP4, or the original one in bf16, fp16 or fp32"
        )
    number = np.float32(np.reshape(tensors.stored(factor), -1)[0])
    with np.errstate(divide="ignore"):
        number = number if whole == _FACTOR else np.float32(1) / number

    def read_encoded(start: int, stop: int) -> NDArray[np.uint8]:
        scales = np.ascontiguousarray(tensors.stored(scale)[start:stop]).view(np.uint8)
        if (scales & _SIGN).any() or (scales == _NAN).any() or not np.isfinite(number):
            raise CheckpointError(
                f"{tensors.place(scale)}: {scale} or {factor} has scales that are negative, "
                "infinity or NaN: download the checkpoint again"
            )
        return nvfp4.blocks_of(tensors.read_bytes(weight, start, stop), scales, float(number))

    def read(start: int, stop: int) -> NDArray[np.float32]:
        return nvfp4.values(read_encoded(start, stop))

    parts = (weight, scale, factor)
    return QuantizedMatrix((rows, 2 * half), parts, None, read, nvfp4.SCALED, read_encoded)
