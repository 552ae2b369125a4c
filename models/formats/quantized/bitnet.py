"""Reads matrices of weights -1, 0 and 1 with one scale, four to a byte (BitNet b1.58, 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gguf import GGMLQuantizationType, quants

from edgespec.errors import CheckpointError
from edgespec.models.formats.quantized.matrix import QuantizedMatrix, modules, require_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.safetensors_folder import SafetensorsFolder

_IN_BYTE = 4
_ENCODING = GGMLQuantizationType.TQ2_0
_BLOCK = 256  # of that encoding


def bitnet_matrices(tensors: SafetensorsFolder, config: ConfigFields) -> dict[str, QuantizedMatrix]:
    """The quantized matrices of a folder, by the names of the tensors that they stand for.

    Scales are a factor of what the first linear class of transformers gives, and a divisor of what
    the second, the default, gives. They are rounded to half precision, as the only numbers here.

    Raises:
        UnsupportedModelError: Weights are rounded when they are used, or inputs are normalized.
        CheckpointError: A scale is missing or has an invalid value.
    """
    config.only({"quantization_mode": (None, "offline")}, "use the checkpoint of packed weights")
    config.only({"use_rms_norm": (None, False)}, "use a model without norms in its matrices")
    config.only({"linear_class": (None, "autobitlinear", "bitlinear")}, "use one of these")
    multiplied = config.get("linear_class") == "autobitlinear"
    return {
        f"{module}weight": _matrix(tensors, module, multiplied)
        for module in (name.removesuffix("_scale") for name in modules(tensors, "weight_scale"))
    }


def _matrix(tensors: SafetensorsFolder, module: str, multiplied: bool) -> QuantizedMatrix:
    weight, scale = f"{module}weight", f"{module}weight_scale"
    require_shape(tensors, scale, (1,), ())
    value = float(np.asarray(tensors.stored(scale), np.float32).reshape(()))
    with np.errstate(all="ignore"):
        factor = np.float16(value if multiplied else np.float32(1) / np.float32(value))
    if not np.isfinite(factor) or factor <= 0:
        raise CheckpointError(
            f"{tensors.place(scale)}: {scale} is {value}, which scales no weights: download the "
            "checkpoint again"
        )
    stored, width = _sizes(tensors, weight)

    def read(start: int, stop: int) -> NDArray[np.float32]:
        rows = np.arange(start, stop)
        parts = rows // stored  # of the bytes, the lowest bits first
        own = rows % stored
        first = int(own.min())
        packed = tensors.read_bytes(weight, first, int(own.max()) + 1)[own - first]
        levels = packed >> (2 * parts[:, None]).astype(np.uint8) & 3
        if (levels > 2).any():
            raise CheckpointError(
                f"{tensors.place(weight)}: {weight} has levels beyond 2: download the checkpoint "
                "again"
            )
        return (levels.astype(np.float32) - 1) * np.float32(factor)

    def read_encoded(start: int, stop: int) -> NDArray[np.uint8]:
        encoded: NDArray[np.uint8] = quants.quantize(read(start, stop), _ENCODING)
        return encoded

    whole = width % _BLOCK == 0
    return QuantizedMatrix(
        (stored * _IN_BYTE, width),
        (weight, scale),
        None,
        read,
        _ENCODING.name.lower() if whole else None,
        read_encoded if whole else None,
    )


def _sizes(tensors: SafetensorsFolder, weight: str) -> tuple[int, int]:
    """Rows and columns of a matrix of bytes.

    Raises:
        CheckpointError: It is something else.
    """
    shape = tensors.byte_shape(weight)
    if len(shape) != 2:
        raise CheckpointError(
            f"{tensors.place(weight)}: {weight} has shape {list(shape)}, not that of a matrix: "
            "use config and weights of the same model"
        )
    return shape[0], shape[1]
