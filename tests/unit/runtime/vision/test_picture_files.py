"""Files of pictures that ask for any time and memory; those of users are opened as before."""

from __future__ import annotations

import io
import struct
import threading
import time

import numpy as np
import pytest
from PIL import Image

from edgespec.bundle import Vision
from edgespec.errors import InputError, reason
from edgespec.runtime.vision import cut_picture, open_picture, seen, upright
from edgespec.system.waiting import NOBODY_WAITS

COLOURS = np.random.default_rng(0).integers(0, 255, (40, 60, 4)).astype(np.uint8)
VISION = Vision(16, 32, True, (0.5,) * 3, (0.5,) * 3, 1, "graph", "data", 3, 4)


def saved(picture, form, **options):
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


FORMS = {
    "png": ("RGBA", "PNG", {}),
    "jpeg": ("RGB", "JPEG", {"quality": 90}),
    "progressive jpeg": ("RGB", "JPEG", {"progressive": True}),
    "webp": ("RGBA", "WEBP", {"lossless": True}),
    "gif": ("P", "GIF", {}),
    "bmp": ("RGB", "BMP", {}),
    "grey": ("LA", "PNG", {}),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_child_sees_what_this_process_would(name):
    mode, form, options = FORMS[name]
    content = saved(Image.fromarray(COLOURS).convert(mode), form, **options)
    here = upright(Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(np.asarray(open_picture(content)), np.asarray(here))
    found = seen(content, VISION)
    expected = cut_picture(here, VISION)
    assert found.grid == expected.grid
    for own, other in zip(found.pieces, expected.pieces, strict=True):
        np.testing.assert_array_equal(own, other)


def scans(count, size=64):
    """A progressive JPEG file of one colour, whose blocks are gone over so many times."""

    def part(mark, data):
        return b"\xff" + bytes([mark]) + struct.pack(">H", len(data) + 2) + data

    blocks = (size // 8) ** 2
    code = bytes([1] + [0] * 15)
    begin = part(0xDB, b"\0" + bytes([1] * 64))
    begin += part(0xC2, struct.pack(">BHHB", 8, size, size, 1) + bytes([1, 0x11, 0]))
    begin += part(0xC4, b"\x00" + code + b"\x00") + part(0xC4, b"\x10" + code + b"\xe0")
    first = part(0xDA, bytes([1, 1, 0, 0, 0, 0])) + bytes(blocks // 8)
    others = part(0xDA, bytes([1, 1, 0, 1, 63, 0])) + b"\x7f" + b"\xff\0"
    return b"\xff\xd8" + begin + first + others * count + b"\xff\xd9"


def bmp(width, height, body):
    """A BMP file of 8 bits whose pixels are given as runs."""
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, 0, 0, 0, 256, 0) + bytes(1024)
    size = 14 + len(head) + len(body)
    return b"BM" + struct.pack("<IHHI", size, 0, 0, 14 + len(head)) + head + body


def webp(width, height):
    """A WebP file of some bytes that claims a canvas of any size."""
    frames = Image.new("RGBA", (8, 8)), Image.new("RGBA", (8, 8), (1, 2, 3, 4))
    content = bytearray(saved(frames[0], "WEBP", save_all=True, append_images=[frames[1]]))
    place = content.index(b"VP8X") + 12
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    content[place : place + 6] = size
    return bytes(content)


PNG = saved(Image.fromarray(COLOURS), "PNG")
JPEG = saved(Image.new("RGB", (8, 8)), "JPEG")
HOSTILE = {
    "a line of 50 million pixels": (saved(Image.new("1", (1 << 22, 1)), "PNG"), "131072 on a side"),
    "a column of them": (saved(Image.new("1", (1, 1 << 22)), "PNG"), "131072 on a side"),
    "runs of a line": (bmp(50_000_000, 1, b"\x01a\0\0"), "131072 on a side"),
    "a canvas": (webp(1 << 14, 1 << 14), "too large|pixels"),
    "scans": (scans(3000), "more than 100 scans"),
    "scans of many pixels": (scans(25, 7064), "more than 20 scans"),
    "marks without end": (JPEG[:2] + b"\xff" * 20_000_000 + JPEG[2:], "longer than 5 s"),
    "no picture": (b"GIF89a" + bytes(99), "of no known format|cannot be read"),
    "nothing": (b"", "of no known format"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_a_line(name):
    content, words = HOSTILE[name]
    with pytest.raises(InputError, match=words) as caught:
        open_picture(content)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 300
    assert "0x" not in said  # where something lies in memory


def test_progressive_files_of_usual_programs_are_read():
    assert open_picture(scans(10)).size == (64, 64)
    trailed = scans(10) + b"\xff\xda" * 10_000  # a video behind the picture, as phones write it
    assert open_picture(trailed).size == (64, 64)


def test_errors_do_not_tell_addresses():
    assert reason(f"cannot identify {io.BytesIO()!r}!") == "cannot identify <_io.BytesIO object>!"


def test_others_go_on_meanwhile():
    """The interpreter's lock is free while a picture is opened and scaled."""
    content = saved(Image.new("RGBA", (5000, 5000), (1, 2, 3, 4)), "PNG", compress_level=1)
    seen(content, VISION)
    gaps = []
    ended = threading.Event()

    def watch():
        last = time.thread_time()
        while not ended.wait(0.001):
            gaps.append(time.thread_time() - last)
            last = time.thread_time()

    watching = threading.Thread(target=watch)
    watching.start()
    begun = time.process_time()
    seen(content, VISION)
    taken = time.process_time() - begun
    ended.set()
    watching.join()
    assert len(gaps) > 20
    assert taken < 0.3  # where the child takes more than a second


def test_a_picture_that_nobody_waits_for_is_left():
    open_picture(PNG)
    gone = threading.Event()
    told = NOBODY_WAITS.set(gone.is_set)
    try:
        threading.Timer(0.2, gone.set).start()
        begun = time.monotonic()
        with pytest.raises(InputError, match="nobody waits"):
            open_picture(HOSTILE["marks without end"][0])
        assert time.monotonic() - begun < 2
    finally:
        NOBODY_WAITS.reset(told)
    assert open_picture(PNG).size == (60, 40)
