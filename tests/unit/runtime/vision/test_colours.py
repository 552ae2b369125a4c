"""Pictures of any mode and depth look as they look elsewhere."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from edgespec.runtime.vision import open_picture, upright

DEEP = np.array([[0, 1, 255, 256, 0x12FF, 0x8000, 0xFFFF]], np.uint16)
HIGH = [0, 0, 0, 1, 0x12, 0x80, 0xFF]


def png(rows, depth, kind, clear=None):
    """A PNG file of one or more rows, whose bytes are given as they are in the file."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    bits = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind] * depth
    head = struct.pack(">IIBBBBB", len(rows[0]) * 8 // bits, len(rows), depth, kind, 0, 0, 0)
    parts = [chunk(b"IHDR", head)]
    if clear is not None:
        parts.append(chunk(b"tRNS", clear))
    parts.append(chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def shades(picture):
    """The grey shades of a picture's first row."""
    colours = np.asarray(picture)
    assert picture.mode == "RGB"
    assert (colours == colours[..., :1]).all()
    return colours[0, :, 0].tolist()


def deep_bytes(*channels):
    return np.stack(channels, -1).astype(">u2").tobytes()


def test_16_bits_show_the_upper_ones():
    grey = DEEP[0]
    opaque = np.full(7, 0xFFFF)
    assert shades(open_picture(png([deep_bytes(grey)], 16, 0))) == HIGH
    assert shades(open_picture(png([deep_bytes(grey, grey, grey)], 16, 2))) == HIGH
    assert shades(open_picture(png([deep_bytes(grey, opaque)], 16, 4))) == HIGH
    assert shades(open_picture(png([deep_bytes(grey, grey, grey, opaque)], 16, 6))) == HIGH


def test_clear_parts_of_16_bits_are_white():
    grey = DEEP[0]
    key = struct.pack(">H", 0x12FF)
    expected = [*HIGH[:4], 255, *HIGH[5:]]
    assert shades(open_picture(png([deep_bytes(grey)], 16, 0, key))) == expected
    assert shades(open_picture(png([deep_bytes(grey, grey, grey)], 16, 2, key * 3))) == expected
    half = np.where(grey == 0x12FF, 0, 0xFFFF)
    assert shades(open_picture(png([deep_bytes(grey, half)], 16, 4))) == expected


@pytest.mark.parametrize(
    ("depth", "row", "expected"),
    [
        (1, b"\x55", [0, 255] * 4),
        (2, b"\x1b", [0, 85, 170, 255]),
        (4, b"\x05\xaf", [0, 85, 170, 255]),
    ],
)
def test_few_bits(depth, row, expected):
    assert shades(open_picture(png([row], depth, 0))) == expected
    clear = {1: 0, 2: 1, 4: 5}[depth]  # black, and two dark greys
    shown = [255 if shade == expected[depth > 1] else shade for shade in expected]
    assert shades(open_picture(png([row], depth, 0, struct.pack(">H", clear)))) == shown


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I;16L"])
def test_deep_pictures_of_pillow(mode):
    order = ">u2" if mode == "I;16B" else "<u2"
    assert shades(upright(Image.frombytes(mode, (7, 1), DEEP.astype(order).tobytes()))) == HIGH


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([0, 0x12FF, 0xFFFF], np.int32, [0, 0x12, 255]),
        ([-5, 17, 255], np.int32, [0, 17, 255]),
        ([0, 0.2, 1], np.float32, [0, 51, 255]),
        ([0, 100.0, 255], np.float32, [0, 100, 255]),
        ([0, 0x12FF, 0xFFFF], np.float32, [0, 0x12, 255]),
        ([np.nan, -1, 0.2], np.float32, [0, 0, 51]),
        ([np.inf, 0, 0], np.float32, [255, 0, 0]),
    ],
)
def test_32_bits(values, kind, expected):
    assert shades(upright(Image.fromarray(np.array([values], kind)))) == expected


def test_inks_are_those_of_the_file():
    """Files hold them inverted, as Adobe does it."""
    inks = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    file = io.BytesIO()
    inks.save(file, "JPEG", quality=100)
    red, green, blue = open_picture(file.getvalue()).getpixel((4, 4))
    assert red < 5
    assert min(green, blue) > 250


def test_palettes_and_strips():
    """Large pictures are converted in strips."""
    values = np.arange(1300 * 1000).reshape(1300, 1000) % 251
    whole = Image.fromarray(values.astype(np.uint8), "P")
    whole.putpalette([n for shade in range(256) for n in (shade, 255 - shade, 7)])
    whole.info["transparency"] = 3
    shown = np.asarray(upright(whole))
    expected = np.stack([values, 255 - values, np.full_like(values, 7)], -1)
    expected[values == 3] = 255
    np.testing.assert_array_equal(shown, expected)


def test_a_picture_of_the_caller_stays_as_it_was():
    given = Image.fromarray(DEEP)
    given.info["transparency"] = 256
    upright(given)
    assert given.info == {"transparency": 256}
    np.testing.assert_array_equal(np.asarray(given), DEEP)
