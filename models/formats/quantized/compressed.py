"""Reads matrices in the formats of compressed-tensors, which llm-compressor writes (vLLM project).

`pack-quantized` has `weight_packed` [N, K * bits / 32] in 32-bit words, `weight_scale` [N, groups],
`weight_shape`, and perhaps `weight_zero_point` [N * bits / 32, groups], packed along N, and
`weight_g_idx` [K]. `int-quantized` has int8, and `float-quantized` 8-bit floats as `weight`. Packed
numbers are unsigned: signed ones plus half of their range. `float4.py` has
`nvfp4-pack-quantized`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import UnsupportedModelError
from edgespec.models.fields import ConfigFields
from edgespec.models.formats.quantized.float4 import float4_matrices
from edgespec.models.formats.quantized.fp8 import block_of, scaled_matrices
from edgespec.models.formats.quantized.matrix import (
    Groups,
    QuantizedMatrix,
    grouped,
    modules,
    read_groups,
    require_shape,
    unpacked,
)
from edgespec.models.formats.tensors import BlockRows, Blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from edgespec.models.formats.safetensors_folder import SafetensorsFolder

_FORMATS = (
    "pack-quantized",
    "nvfp4-pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "dense",
)
_MIXED = "mixed-precision"  # each group has a format of its own
_UNSET = -1  # group of every column, if act-order was not used
_NONE = (None, -1)  # group sizes of matrices with a scale for each row
_SCALE = ("weight_scale",)


def compressed_matrices(
    tensors: SafetensorsFolder, config: ConfigFields
) -> dict[str, QuantizedMatrix]:
    """The quantized matrices of a folder, by the names of the tensors that they stand for.

    Raises:
        UnsupportedModelError: A field of the config asks for something else.
        CheckpointError: A tensor is missing or has another shape.
    """
    groups = list(_checked_groups(config))
    blocks = [block_of(each, "block_structure") for each in groups]
    block = next((each for each in blocks if each is not None), None)
    sizes = {each.integer("group_size") for each in groups if each.get("group_size") not in _NONE}
    packed = modules(tensors, "weight_packed")
    floats = [each for each in packed if tensors.dtype(f"{each}weight_packed") == "U8"]
    found = float4_matrices(tensors, floats, "weight_packed", "weight_global_scale")
    found |= {
        f"{each}weight": _packed(tensors, each, sizes) for each in packed if each not in floats
    }
    bytes_ = {
        f"{each}weight": _bytes(tensors, each, sizes)
        for each in modules(tensors, "weight")
        if tensors.dtype(f"{each}weight") == "I8"
    }
    return found | bytes_ | scaled_matrices(tensors, _SCALE, block, found.values())


def _checked_groups(config: ConfigFields) -> Iterator[ConfigFields]:
    """Yields how each group of modules is quantized, after checking that it can be read."""
    formats = [config]
    named = config.group("config_groups")
    for name in named.values:
        group = named.group(name)
        formats.append(group)
        yield group.group("weights")
    for each in formats:
        if each.get("format") not in (None, _MIXED, *_FORMATS):
            raise each.unsupported("format", f"use one of {', '.join(_FORMATS)}")
    sparsity = config.group("sparsity_config")
    if sparsity.get("format") not in (None, "dense"):
        raise sparsity.unsupported("format", "use a checkpoint that is not sparse")
    if config.group("transform_config").values:
        raise config.unsupported("transform_config", "use a checkpoint without transforms")


def _packed(tensors: SafetensorsFolder, module: str, sizes: set[int]) -> QuantizedMatrix:
    packed, scale, zero, shape, g_idx = (
        f"{module}weight_{part}" for part in ("packed", "scale", "zero_point", "shape", "g_idx")
    )
    require_shape(tensors, shape, (2,))
    rows, width = map(int, tensors.read_integers(shape))
    words = tensors.integers(packed, np.int32, 2).shape[1]
    # Also a shape of zeros, or negative, has no bit width with which it fits the words.
    bits = next((each for each in (4, 8) if -(-width * each // 32) == words), None)
    if bits is None:
        raise UnsupportedModelError(
            f"{tensors.place(packed)}: {packed} has {words} words for {width} weights, which is "
            "not supported: use a checkpoint in 4 or 8 bits"
        )
    require_shape(tensors, packed, (rows, words))
    parts = [packed, scale, shape]
    in_word = 32 // bits
    wanted = [(rows, width // size) for size in (*sizes, width) if width % size == 0]
    require_shape(tensors, scale, *wanted)
    groups = tensors.stored(scale).shape[1]
    group_of = np.arange(width) // (width // groups)
    if zero in tensors.names:
        parts.append(zero)
        require_shape(tensors, zero, (-(-rows // in_word), groups))
    if g_idx in tensors.names:
        parts.append(g_idx)
        if (tensors.read_integers(g_idx) != _UNSET).any():
            group_of = read_groups(tensors, g_idx, width, groups)

    def read(start: int, stop: int) -> BlockRows:
        stored = tensors.integers(packed, np.int32, 2)[start:stop]
        levels = unpacked(stored, bits, axis=1)[:, :width]
        factors = np.asarray(tensors.stored(scale)[start:stop], np.float32)
        if zero not in parts:
            return BlockRows(levels, factors, None)
        first = start // in_word
        last = -(-stop // in_word)
        zeros = unpacked(tensors.integers(zero, np.int32, 2)[first:last], bits, axis=0)
        return BlockRows(levels, factors, zeros[start - first * in_word : stop - first * in_word])

    groups_of = Groups(width // groups, group_of)
    return grouped((rows, width), tuple(parts), bits, groups_of, read)


def _bytes(tensors: SafetensorsFolder, module: str, sizes: set[int]) -> QuantizedMatrix:
    weight, scale, zero = (
        module + part for part in ("weight", "weight_scale", "weight_zero_point")
    )
    rows, width = tensors.integers(weight, np.int8, 2).shape
    wanted: list[tuple[int, ...]] = [(), (1,), (rows,)]
    wanted += [(rows, width // size) for size in (*sizes, width) if width % size == 0]
    groups = max(1, tensors.stored(scale).size // rows)
    require_shape(tensors, scale, *wanted)
    parts = [weight, scale]
    if zero in tensors.names:
        parts.append(zero)
        require_shape(tensors, zero, *wanted)

    def by_row(name: str, start: int, stop: int) -> NDArray[np.generic]:
        whole = np.broadcast_to(np.reshape(tensors.stored(name), (-1, groups)), (rows, groups))
        return whole[start:stop]

    def read(start: int, stop: int) -> BlockRows:
        levels = _unsigned(tensors.integers(weight, np.int8, 2)[start:stop])
        factors = np.asarray(by_row(scale, start, stop), np.float32)
        zeros = _unsigned(by_row(zero, start, stop)) if zero in parts else None
        return BlockRows(levels, factors, zeros)

    return QuantizedMatrix((rows, width), tuple(parts), Blocks(8, -(-width // groups)), read)


def _unsigned(numbers: NDArray[np.generic]) -> NDArray[np.uint8]:
    return (np.asarray(numbers, np.int16) + 128).astype(np.uint8)
