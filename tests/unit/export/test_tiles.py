"""Tiles: every weight lies where kernels look for it, with the numbers that it came with."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from ggufs import dequantized
from hypothesis import given
from hypothesis import strategies as st

from edgespec.export.formats.gguf_tiles import tile_format, tiles_of_gguf
from edgespec.export.formats.tile_formats import TILE_FORMATS
from edgespec.export.formats.tiles import (
    levels_of_tiles,
    tile_weights,
    tiles_of_floats,
    tiles_of_levels,
)
from edgespec.models.formats import tensors
from edgespec.models.formats.gguf.encodings import ENCODINGS
from edgespec.models.formats.tensors import BlockRows, Blocks

ENCODED = sorted(each.name.lower() for each in ENCODINGS.values())
# Where the bytes of a block are numbers in half precision.
HALVES = {
    "q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0], "iq4_nl": [0],
    "q2_k": [80, 82], "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208], "iq4_xs": [0],
    "q1_0": [0], "tq1_0": [52], "tq2_0": [64], "iq1_s": [0], "iq2_xxs": [0], "iq2_xs": [0],
    "iq2_s": [0], "iq3_xxs": [0], "iq3_s": [0],
}  # fmt: skip
# Bytes of a unit as kernels count them.
UNIT_BYTES = {
    "f32": 64, "f16": 32, "bf16": 32, "q4_0": 288, "q4_1": 320, "q4_z": 304, "q5_0": 352,
    "q5_1": 384, "q8_0": 544, "q8_z": 560, "iq4_nl": 288, "mxfp4": 272, "q2_k": 1344, "q3_k": 1824,
    "q4_k": 2368, "q5_k": 2880, "q6_k": 3360, "iq4_xs": 2208, "q1_0": 288, "tq2_0": 1056,
    "iq1_s": 1120, "iq1_m": 1248, "iq2_xxs": 1632, "iq2_s": 1696, "iq3_xxs": 2144, "iq3_s": 2144,
    "nvfp4": 640,
}  # fmt: skip


def random_rows(name, rows, columns):
    """Random bytes of an encoding, but for scales, which are finite."""
    block, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
    rng = np.random.default_rng(rows)
    if block == 1:
        values = rng.standard_normal((rows, columns)).astype(np.float32)
        return quants.quantize(values, GGMLQuantizationType[name.upper()]).view(np.uint8)
    stored = rng.integers(0, 256, (rows, columns // block, nbytes), np.uint8)
    for place in HALVES.get(name, ()):
        halves = rng.standard_normal(stored.shape[:2]).astype(np.float16)
        stored[:, :, [place, place + 1]] = halves[..., None].view(np.uint8)
    if name == "mxfp4":
        stored[:, :, 0] >>= 1
    if name == "iq1_m":  # whose scale lies in the upper halves of some bytes
        stored[:, :, 55] &= 0xBF
    return stored.reshape(rows, -1)


def same_bits(found, expected):
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_units_have_the_bytes_that_kernels_count():
    assert {name: kind.unit_bytes for name, kind in TILE_FORMATS.items()} == UNIT_BYTES


@pytest.mark.parametrize("name", ENCODED)
def test_tiles_take_little_more_than_files(name):
    block, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
    assert tile_format(name).weight_bits <= 8 * nbytes / block + 1.13


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize(("rows", "columns"), [(16, 256), (37, 768), (5, 2048), (1300, 512)])
def test_rows_of_a_file_have_its_weights_bit_for_bit(name, rows, columns):
    stored = random_rows(name, rows, columns)
    expected = dequantized(stored, GGMLQuantizationType[name.upper()])
    same_bits(ENCODINGS[GGMLQuantizationType[name.upper()]].decode(stored), expected)
    tiles = tiles_of_gguf(name, stored)
    kind = tile_format(name)
    assert tiles.shape == kind.shape(rows, columns)
    same_bits(tile_weights(kind.name, tiles, rows, columns), expected)
    parts = [tiles_of_gguf(name, stored[start : start + 32]) for start in range(0, rows, 32)]
    np.testing.assert_array_equal(np.concatenate(parts), tiles)


def bits_of_level(unit, header, bits, lane, k, beside=0):
    """The level of column k of a lane, found bit by bit in the bytes of a unit.

    Args:
        beside: bytes behind the planes of a block.
    """
    block = k // 32
    quad = k % 32 // 4
    start = header + block * (bits * 64 + beside)
    level = 0
    done = 0
    while done < bits:
        plane = next(size for size in (8, 4, 2, 1) if size <= bits - done)
        row, place = {
            8: (quad, 0),
            4: (quad % 4, quad // 4),
            2: (quad // 4, quad % 4),
            1: (0, quad),
        }[plane]
        byte = int(unit[start + row * 64 + 4 * lane + k % 4])
        level |= (byte >> place * plane & 2**plane - 1) << done
        start = start + plane * 64
        done = done + plane
    return level


def weight_of_grid(name, unit, lane, k):
    """The weight of column k of a lane by its unit's scale."""
    header, bits, middle, scale_size = KERNELS[name]
    level = bits_of_level(unit, header, bits, lane, k, 8 if name == "iq1_m" else 0) - middle
    part = k // scale_size
    number = unit[32 + part // 2 * 16 + lane] >> part % 2 * 4 & 15
    if name == "iq1_s":
        return np.float32(2 * (number & 7) + 1) * np.float32(level + (-1 if number & 8 else 1) / 8)
    if name == "iq1_m":
        shifts = unit[header + k // 32 * 136 + 128 :][:8].view("<u2")
        level += 4 * (shifts[k % 32 // 8] >> lane & 1)
    kind = TILE_FORMATS[name]
    return np.float32(2 * number + 1) * np.float32(kind.table[level] / kind.times)


def weight_of(name, unit, lane, k):
    """The weight of column k of a lane, read as kernels do."""
    header, bits, middle, scale_size = KERNELS[name]
    level = np.float32(bits_of_level(unit, header, bits, lane, k) - middle)

    def half(place):
        return unit[place : place + 32].view(np.float16).astype(np.float32)[lane]

    def scale(place, dtype=np.uint8):
        return unit.view(dtype)[place + k // scale_size * 16 + lane]

    if name == "q2_k":
        both = scale(64)
        return half(0) * np.float32(both & 15) * level - half(32) * np.float32(both >> 4)
    if name in ("q4_k", "q5_k"):
        return half(0) * np.float32(scale(64)) * level - half(32) * np.float32(scale(192))
    if name == "mxfp4":
        return np.float32(2.0 ** (int(unit[lane]) - 128) * quants.MXFP4.kvalues[int(level)])
    if name == "nvfp4":
        part = quants.NVFP4.ue4m3_to_fp32(scale(64)) / np.float32(128)
        number = np.float32(TILE_FORMATS[name].table[int(level)])
        return unit[:64].view(np.float32)[lane] * part * number
    if "n" in (TILE_FORMATS[name].layout.names or ()):
        return half(0) * weight_of_grid(name, unit, lane, k)
    if name == "q1_0":
        level = 2 * level - 1
    if name.startswith("iq4"):
        level = np.float32(quants.IQ4_NL.kvalues[int(level)])
    part = scale(32, np.int8) if name in ("q3_k", "q6_k", "iq4_xs") else 1
    return half(0) * np.float32(part) * level + (half(32) if name in ("q4_1", "q5_1") else 0)


# Bytes of the header, bits, the level of 0, and columns of a scale.
KERNELS = {
    "q4_0": (32, 4, 8, 32), "q4_1": (64, 4, 0, 32), "q5_0": (32, 5, 16, 32),
    "q5_1": (64, 5, 0, 32), "q8_0": (32, 8, 128, 32), "mxfp4": (16, 4, 0, 32),
    "iq4_nl": (32, 4, 0, 32), "iq4_xs": (160, 4, 0, 32), "q2_k": (320, 2, 0, 16),
    "q3_k": (288, 3, 4, 16), "q4_k": (320, 4, 0, 32), "q5_k": (320, 5, 0, 32),
    "q6_k": (288, 6, 32, 16), "q1_0": (32, 1, 0, 128), "tq2_0": (32, 2, 1, 256),
    "iq1_s": (96, 2, 1, 32), "iq1_m": (160, 2, 0, 16), "iq2_xxs": (96, 3, 0, 32),
    "iq2_s": (160, 3, 0, 16), "iq3_xxs": (96, 4, 0, 32), "iq3_s": (96, 4, 0, 32),
    "nvfp4": (128, 4, 0, 16),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_weights_lie_where_kernels_look_for_them(name):
    size = TILE_FORMATS[name].unit
    stored = random_rows(name, 32, 2 * size)
    weights = dequantized(stored, GGMLQuantizationType[name.upper()])
    tile = tiles_of_gguf(name, stored)[1]
    for unit, lane, k in np.random.default_rng(1).integers(0, (2, 16, size), (99, 3)):
        assert weight_of(name, tile[unit], lane, k) == weights[16 + lane, unit * size + k]


@pytest.mark.parametrize("name", ENCODED)
def test_lanes_behind_the_last_row_are_zeros(name):
    stored = random_rows(name, 3, 512)
    (tile,) = tiles_of_gguf(name, stored)
    kind = tile_format(name)
    assert not tile_weights(kind.name, tile[None], 16, 512)[3:].any()
    stored = tile.view(kind.layout)
    fields = {each: stored[each] for each in kind.layout.names}
    if "blocks" in fields:
        blocks = fields.pop("blocks")
        fields["levels"] = blocks["levels"]
        fields["shifts"] = np.unpackbits(
            blocks["shifts"][..., None].view("u1"), axis=-1, bitorder="little"
        )
    for found in fields.values():
        assert not found[..., 3:].any()
        assert found[..., :3].any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ENCODED)
def test_scales_that_are_no_numbers_are_read_without_a_warning(name):
    block, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
    stored = np.random.default_rng(0).integers(0, 256, (64, 4096 // block * nbytes), np.uint8)
    kind = tile_format(name)
    assert tiles_of_gguf(name, stored).shape == kind.shape(64, 4096)


def test_rows_that_end_within_a_block_are_refused():
    with pytest.raises(ValueError, match="145 bytes in a row: q4_k has blocks of 144"):
        tiles_of_gguf("q4_k", np.zeros((16, 145), np.uint8))


# Levels


@st.composite
def in_blocks(draw):
    bits = draw(st.sampled_from([4, 8]))
    size = draw(st.sampled_from([32, 64, 96, 128, 999]))
    rows = draw(st.integers(1, 40))
    width = draw(st.integers(1, 300))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    count = -(-width // size)
    scales = rng.standard_normal((rows, count)).astype(np.float16).astype(np.float32)
    zeros = rng.integers(0, 2**bits, (rows, count), np.uint8) if draw(st.booleans()) else None
    return BlockRows(rng.integers(0, 2**bits, (rows, width), np.uint8), scales, zeros), Blocks(
        bits, size
    )


@given(in_blocks())
def test_levels_and_scales_are_kept(given_rows):
    held, blocks = given_rows
    rows, width = held.levels.shape
    name, tiles = tiles_of_levels(held.levels, held.scales, held.zeros, blocks.bits, blocks.size)
    assert name == f"q{blocks.bits}_{'0' if held.zeros is None else 'z'}"
    assert tiles.shape == TILE_FORMATS[name].shape(rows, width)
    np.testing.assert_array_equal(
        tile_weights(name, tiles, rows, width), tensors.block_weights(held, blocks)
    )
    padded = tile_weights(name, tiles, 16 * len(tiles), 32 * tiles.shape[1])
    assert not padded[rows:].any()
    assert not padded[:, width:].any()


@given(in_blocks())
def test_levels_and_scales_come_back(given_rows):
    held, blocks = given_rows
    (rows, width), size = held.levels.shape, blocks.size
    name, tiles = tiles_of_levels(held.levels, held.scales, held.zeros, blocks.bits, size)
    found = levels_of_tiles(name, tiles, rows)
    np.testing.assert_array_equal(found.levels[:, :width], held.levels)
    block_of = np.arange(-(-width // 32)) * 32 // size
    np.testing.assert_array_equal(found.scales, held.scales[:, block_of])
    zeros = 2 ** (blocks.bits - 1) if held.zeros is None else held.zeros[:, block_of]
    np.testing.assert_array_equal(found.zeros, np.broadcast_to(zeros, found.zeros.shape))
    assert (found.bits, found.minima) == (blocks.bits, None)


def test_levels_of_a_file_are_the_tiles_of_the_file():
    for encoding in (each for each in ENCODINGS.values() if each.blocks):
        name = encoding.name.lower()
        stored = random_rows(name, 40, 96)
        held = encoding.decode_blocks(stored)
        found = tiles_of_levels(held.levels, held.scales, None, encoding.blocks.bits, 32)
        assert found[0] == name
        np.testing.assert_array_equal(found[1], tiles_of_gguf(name, stored))


def test_zero_points_lie_behind_the_scales():
    zeros = np.arange(64, dtype=np.uint8).reshape(16, 4) % 16
    levels = np.zeros((16, 128), np.uint8)
    scales = np.ones((16, 4), np.float16)
    _, tiles = tiles_of_levels(levels, scales, zeros, 4, 32)
    np.testing.assert_array_equal(tiles[0, :, 32:48], zeros.T)


@pytest.mark.parametrize("scale", [1 + 2**-12, 1e5, 1e-9])
def test_scales_that_half_precision_does_not_have_are_refused(scale):
    levels = np.ones((2, 64), np.uint8)
    scales = np.full((2, 2), scale, np.float32)
    with pytest.raises(ValueError, match="half precision does not have all scales"):
        tiles_of_levels(levels, scales, None, 4, 32)


@pytest.mark.parametrize(("bits", "size"), [(4, 16), (8, 48), (3, 32)])
def test_blocks_that_tiles_do_not_have_are_refused(bits, size):
    levels = np.ones((2, 96), np.uint8)
    scales = np.ones((2, 96 // size), np.float32)
    with pytest.raises(ValueError, match=f"blocks of {size} weights of {bits} bits"):
        tiles_of_levels(levels, scales, None, bits, size)


# Floats


@pytest.mark.parametrize(
    ("name", "dtype"), [("f32", np.float32), ("f16", np.float16), ("bf16", ml_dtypes.bfloat16)]
)
def test_floats_are_rounded_once(name, dtype):
    values = np.random.default_rng(0).standard_normal((21, 33)).astype(np.float32)
    tiles = tiles_of_floats(values, name)
    assert tiles.shape == (2, 33, UNIT_BYTES[name])
    same_bits(tile_weights(name, tiles, 21, 33), values.astype(dtype).astype(np.float32))
    # Neighbouring bytes are neighbouring rows.
    np.testing.assert_array_equal(tiles[0, 5].view(dtype), values[:16, 5].astype(dtype))
    assert not tile_weights(name, tiles, 32, 33)[21:].any()
