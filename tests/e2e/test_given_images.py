"""How users give pictures: files, bytes, data URLs and hostile ones."""

from __future__ import annotations

import base64
import io
import struct
import sys
import zlib

import numpy as np
import pytest
from nodes import MISSING
from PIL import Image
from towers import asked, picture, save_pictured

from edgespec import LLM, export
from edgespec.errors import InputError
from edgespec.export import ExportOptions
from edgespec.llm.images import decode_data_url
from edgespec.runtime.vision import open_picture, upright

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")


@pytest.fixture(scope="module", params=["smolvlm", "qwen3_vl"])
def llm(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp(request.param)
    save_pictured(folder / "checkpoint", request.param, sharp=12.0)
    export.make(folder / "checkpoint", folder / "bundle", None, ExportOptions(precision="fp32"))
    with LLM(folder / "bundle", threads=1, context=512) as opened:
        yield opened


def saved(given, form="PNG", **options):
    file = io.BytesIO()
    given.save(file, form, **options)
    return file.getvalue()


def url(content, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def test_all_ways_to_give_a_picture_are_the_same(llm, tmp_path):
    given = picture(40, 32)
    (tmp_path / "picture.png").write_bytes(content := saved(given))
    ways = [
        {"type": "image", "image": given},
        {"type": "image", "image": content},
        {"type": "image", "path": tmp_path / "picture.png"},
        {"type": "image", "image": str(tmp_path / "picture.png")},
        {"type": "image", "url": url(content)},
        {"type": "image_url", "image_url": {"url": url(content), "detail": "auto"}},
    ]
    found = {
        tuple(llm.chat([{"role": "user", "content": [way]}], max_new_tokens=4).tokens)
        for way in ways
    }
    assert len(found) == 1


def test_pictures_are_turned_as_the_camera_was_held_and_clear_ones_are_on_white():
    colours = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter to the right
    turned = upright(open_picture(saved(Image.fromarray(colours), exif=exif)))
    np.testing.assert_array_equal(np.asarray(turned), np.rot90(colours, -1))
    clear = Image.new("RGBA", (2, 2), (9, 9, 9, 0))
    assert upright(clear).getpixel((0, 0)) == (255, 255, 255)


PNG = saved(picture(20, 20))
# A header of 100,000 x 100,000 pixels with nothing behind it that is as large.
HUGE = PNG[:16] + struct.pack(">II", 100_000, 100_000) + PNG[24:29]
HUGE += struct.pack(">I", zlib.crc32(HUGE[12:])) + PNG[33:]
FRAMES = saved(
    picture(30, 30), "GIF", save_all=True, append_images=[picture(30, 30, n) for n in range(50)]
)
WIDE = saved(picture(8, 8), "GIF")
WIDE = WIDE[:6] + struct.pack("<HH", 65_535, 65_535) + WIDE[10:]
HOSTILE = {
    "truncated": (PNG[: len(PNG) // 2], "cannot be read"),
    "huge": (HUGE, "too large|pixels"),
    "wide gif": (WIDE, "too large|pixels"),
    "text": (b"<svg onload=alert(1)>", "cannot be read"),
    "nothing": (b"", "cannot be read"),
    "too many bytes": (b"x" * ((32 << 20) + 1), "34 MB"),
    "none": (None, "an image is None"),
    "number": (7, "an image is 7"),
    "no file": ("/nowhere/at all.png", "no file"),
    "folder": ("/", "no file"),
    "nul": ("a\0b", "no file|cannot be read"),
    "of the web": ("https://example.org/a.png", "nothing is fetched"),
    "capitals of the web": (" HTTPS://example.org/a.png", "nothing is fetched"),
    "no base64": ("data:image/png;base64,####", "not in base64"),
    "plain data": ("data:image/png,abc", "nothing is fetched"),
    "short data": ("data:image/png;base64", "nothing is fetched"),
}


BYTES = bytes(range(256)) * 3
CODE = base64.b64encode(BYTES[:766]).decode()
LINES = base64.encodebytes(BYTES[:766]).decode()
DATA = "data:image/png;base64,"
FORGIVEN = {
    "as it is written": DATA + CODE,
    "lines": DATA + LINES,
    "lines of Windows": DATA + LINES.replace("\n", "\r\n"),
    "tabs and form feeds": DATA + CODE[:7] + "\t\f " + CODE[7:],
    "nothing that fills": DATA + CODE.rstrip("="),
    "spaces around": f"\n {DATA} {CODE} ",
    "a space in the head": f"data:image/png; base64,{CODE}",
    "capitals": f"DATA:image/PNG;BASE64,{CODE}",
    "no kind": f"data:;base64,{CODE}",
    "percents": DATA + CODE.replace("+", "%2B").replace("/", "%2f").replace("=", "%3D"),
    "lines by percents": DATA + LINES.replace("\n", "%0A"),
}


@pytest.mark.parametrize("name", FORGIVEN)
def test_base64_is_read_as_browsers_read_it(name):
    assert decode_data_url(FORGIVEN[name]) == BYTES[:766]


@pytest.mark.parametrize("code", ["aGk=a", "=", "a", "aGk==", "aG=", "a-k_", "aG\x0bk", "\xe4Gk"])
def test_what_browsers_do_not_read_is_refused(code):
    with pytest.raises(InputError, match="not in base64"):
        decode_data_url(DATA + code)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pictures_are_one_clear_line(llm, name):
    given, words = HOSTILE[name]
    with pytest.raises(InputError, match=words) as error:
        llm.chat(asked(given))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_of_a_moving_picture_the_first_one_is_seen():
    assert open_picture(FRAMES).size == (30, 30)


@pytest.mark.parametrize("kind", ["audio", "input_audio", "video"])
def test_sounds_and_videos_are_refused_by_name(llm, kind):
    with pytest.raises(InputError, match=f"a content has the part .*'{kind}'.* or image"):
        llm.chat([{"role": "user", "content": [{"type": kind, kind: "a.bin"}]}])


def test_only_users_show_pictures(llm):
    shown = {"role": "assistant", "content": [{"type": "image", "image": PNG}]}
    with pytest.raises(InputError, match="a message of assistant has an image"):
        llm.chat([shown])


def test_a_model_of_text_alone_says_what_it_is():
    with LLM(threads=1) as embedded, pytest.raises(InputError, match="llama of text alone"):
        embedded.chat(asked(PNG))


def test_without_pillow_the_remedy_is_named(llm, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match=r"\.\[images\]"):
        llm.chat(asked(PNG))
