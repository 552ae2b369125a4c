"""Reads matrices that AutoGPTQ and GPTQModel have quantized (GPTQ: Frantar et al., 2023).

`qweight` [K * bits / 32, N] has the levels of K inputs in 32-bit words, `scales` [groups, N] and
`qzeros` [groups, N * bits / 32] belong to groups of inputs, and `g_idx` [K] says which group an
input is in. The first version of the format, which is the usual one, stores zero points minus one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.formats.quantized.matrix import (
    Groups,
    QuantizedMatrix,
    grouped,
    modules,
    read_groups,
    require_shape,
    unpacked,
)
from edgespec.models.formats.tensors import BlockRows

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.safetensors_folder import SafetensorsFolder

# How much less than the zero point is stored, by the format's version.
_LESS = {"gptq": 1, "gptq_v2": 0}


def gptq_matrices(tensors: SafetensorsFolder, config: ConfigFields) -> dict[str, QuantizedMatrix]:
    """The quantized matrices of a folder, by the names of the tensors that they stand for.

    Raises:
        UnsupportedModelError: A field of the config asks for something else.
        CheckpointError: A tensor is missing or has another shape.
    """
    bits = config.integer("bits")
    if bits not in (4, 8):
        raise config.unsupported("bits", "use a checkpoint in 4 or 8 bits")
    version = config.get("checkpoint_format") or "gptq"
    if version not in _LESS or config.flag("is_marlin_format"):
        raise config.unsupported("checkpoint_format", f"use one of {', '.join(_LESS)}")
    overrides = config.group("dynamic").values
    if any(value for name, value in overrides.items() if not name.startswith("-")):
        raise config.unsupported("dynamic", "use a checkpoint with one group size and bit width")
    size = None if config.get("group_size") == -1 else config.integer("group_size")
    return {
        f"{module}weight": _matrix(tensors, module, bits, size, _LESS[str(version)])
        for module in modules(tensors, "qweight")
    }


def _matrix(
    tensors: SafetensorsFolder, module: str, bits: int, size: int | None, less: int
) -> QuantizedMatrix:
    qweight, qzeros, scales, g_idx = (
        module + part for part in ("qweight", "qzeros", "scales", "g_idx")
    )
    in_word = 32 // bits
    words, rows = tensors.integers(qweight, np.int32, 2).shape
    width = words * in_word
    size = size or width
    groups = -(-width // size)
    require_shape(tensors, qzeros, (groups, rows // in_word))
    require_shape(tensors, scales, (groups, rows))
    parts = [qweight, qzeros, scales]
    group_of = np.arange(width) // size
    if g_idx in tensors.names:
        parts.append(g_idx)
        group_of = read_groups(tensors, g_idx, width, groups)

    def read(start: int, stop: int) -> BlockRows:
        levels = unpacked(tensors.integers(qweight, np.int32, 2)[:, start:stop], bits, axis=0)
        first = start // in_word
        last = -(-stop // in_word)
        zeros = unpacked(tensors.integers(qzeros, np.int32, 2)[:, first:last], bits, axis=1)
        zeros = zeros[:, start - first * in_word : stop - first * in_word]
        # In the first version a zero point of 0 is stored as the largest number.
        zeros = zeros + np.uint8(less) & np.uint8(2**bits - 1)
        factors = np.asarray(tensors.stored(scales)[:, start:stop], np.float32)
        return BlockRows(np.ascontiguousarray(levels.T), factors.T, zeros.T)

    return grouped((rows, width), tuple(parts), bits, Groups(size, group_of), read)
