"""Pictures: their pieces and rows are transformers', and texts behind them are plain decoding's."""

from __future__ import annotations

import base64
import io
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from native_llms import cheapen
from nodes import MISSING
from parity import PROMPT, Text, distance, load
from PIL import Image
from towers import GEMMA4_PIXELS, GRID_PIXELS, IMAGE, MODELS, SIZE, picture, save_pictured
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from edgespec import LLM, bundle, export
from edgespec.bundle.checks import manifest_fault
from edgespec.errors import ContextLengthError, InputError
from edgespec.export import ExportOptions
from edgespec.llm.images import Viewer, decode_data_url
from edgespec.llm.llm import inside
from edgespec.runtime.plan import HOST, Placement, PlacementRequest, plan
from edgespec.runtime.vision import (
    cut_picture,
    looked_at,
    normalized,
    open_picture,
    picture_text,
    rows_of,
    upright,
)

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

NEW, CONTEXT = 40, 512
SPLITTING = bundle.Vision(
    SIZE, 2 * SIZE, True, (0.5, 0.4, 0.3), (0.5, 0.25, 0.2), 1, "graph", "data", IMAGE, 4
)
QUESTION = "what is in the picture?"


def asked(*pictures, text=QUESTION, before=()):
    parts = [{"type": "image", "image": each} for each in pictures]
    return [*before, {"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def recurrent(model):
    return model.config.model_type == "qwen3_5"


def by_transformers(model, tokens, *given):
    read = inputs(model, tokens, *given)
    output = model.generate(**read, do_sample=False, max_new_tokens=NEW, pad_token_id=0)
    return output[0, len(tokens) :].tolist()


@pytest.fixture(scope="module", params=MODELS)
def made(tmp_path_factory, request):
    """transformers' model, and its bundle in full precision, with a draft that sees nothing."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save_pictured(folder / "checkpoint", request.param, sharp=12.0)
    skipped = () if recurrent(model) else ("1m",)
    options = ExportOptions(precision="fp32", skip_sets=skipped)
    export.make(folder / "checkpoint", folder / "bundle", folder / "checkpoint", options)
    with LLM(folder / "bundle", threads=1, context=CONTEXT) as llm:
        tokens = llm.chat_tokens(asked(picture(60, 20)))
    return model, folder / "bundle", by_transformers(model, tokens, picture(60, 20))


@pytest.fixture(scope="module")
def llm(made):
    with LLM(made[1], threads=1, context=CONTEXT) as opened:
        yield opened


def inputs(model, tokens, *given):
    """What transformers' model reads."""
    ids = torch.tensor([tokens])
    if model.config.model_type.startswith("gemma4"):
        # Patches of the unified model are what others have three by three of.
        merged = {"patch_size": 12, "pooling_kernel_size": 1, "max_soft_tokens": 70}
        sizes = merged if model.config.model_type == "gemma4_unified" else GEMMA4_PIXELS
        read = dict(Gemma4ImageProcessorPil(**sizes)([[each] for each in given]))
        del read["num_soft_tokens_per_image"]
        read = {name: torch.tensor(np.array(each)) for name, each in read.items()}
        return {"input_ids": ids, "mm_token_type_ids": (ids == IMAGE).long(), **read}
    if model.config.model_type.startswith("qwen"):
        found = in_grid([[each] for each in given])
        shown = {name: torch.tensor(np.array(each)) for name, each in found.items()}
        return {"input_ids": ids, "mm_token_type_ids": (ids == IMAGE).int(), **shown}
    if model.config.model_type != "gemma3":
        pixels = torch.tensor(np.concatenate([prepared(each)[0] for each in given]))[None]
        return {"input_ids": ids, "pixel_values": pixels}
    own = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.25, 0.2]}
    processor = Gemma3ImageProcessorPil(size={"height": SIZE, "width": SIZE}, **own)
    pixels = np.array(processor([[each] for each in given])["pixel_values"])
    shown = {"token_type_ids": (ids == IMAGE).int()}
    return {"input_ids": ids, "pixel_values": torch.tensor(pixels), **shown}


def in_grid(given):
    """transformers' patches, and how many lines and columns of them pictures have."""
    own = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.25, 0.2]}
    return Qwen2VLImageProcessorPil(**GRID_PIXELS, **own)(given)


def prepared(given, **options):
    """transformers' pieces, and its numbers of rows and columns."""
    own = {
        "size": {"longest_edge": 2 * SIZE},
        "max_image_size": {"longest_edge": SIZE},
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.5, 0.25, 0.2],
    }
    found = SmolVLMImageProcessorPil(**own, **options)(
        [[given]], return_tensors="np", return_row_col_info=True
    )
    return found["pixel_values"][0], found["rows"][0][0], found["cols"][0][0]


@pytest.mark.parametrize(
    "size", [(64, 64), (200, 90), (31, 77), (5, 400), (1000, 1), (32, 32), (3, 3), (65, 33)]
)
@pytest.mark.parametrize("split", [True, False])
def test_pieces_are_those_of_transformers(size, split):
    vision = replace(SPLITTING, split=split)
    given = picture(*size)
    expected, rows, columns = prepared(given, do_image_splitting=split)
    seen = cut_picture(given, vision)
    found = np.concatenate([normalized(each, vision) for each in seen.pieces])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    text = get_image_prompt_string(
        rows, columns, vision.rows, "<fake_token_around_image>", "<image>", "<global-img>"
    )
    assert picture_text(seen.grid, vision, lambda _: "<image>") == text


@pytest.mark.parametrize("size", [(64, 64), (200, 90), (31, 77), (3, 3)])
def test_whole_pictures_are_those_of_transformers(size):
    vision = replace(SPLITTING, longest=0, split=False, around=(336, 337), resample=2)
    model = SimpleNamespace(config=SimpleNamespace(model_type="gemma3"))
    expected = inputs(model, [IMAGE], picture(*size))["pixel_values"].numpy()
    seen = cut_picture(picture(*size), vision)
    np.testing.assert_allclose(normalized(seen.pieces[0], vision), expected, atol=1e-5)
    text = picture_text(seen.grid, vision, {IMAGE: "i", 336: "(", 337: ")"}.__getitem__)
    assert text == "\n\n(iiii)\n\n"


@pytest.mark.parametrize(
    "size",
    [(64, 64), (84, 120), (200, 90), (31, 77), (5, 400), (3000, 1), (1, 3000), (1, 1), (850, 12)],
)
@pytest.mark.parametrize("normalizes", [False, True])
def test_pictures_that_keep_their_proportions_are_those_of_transformers(size, normalizes):
    colours = [0.5, 0.4, 0.3], [0.5, 0.25, 0.2]
    own = {"image_mean": colours[0], "image_std": colours[1], "do_normalize": normalizes}
    found = Gemma4ImageProcessorPil(**GEMMA4_PIXELS, **own)([[picture(*size)]])
    pixels, places, [count] = found.values()
    vision = bundle.Vision(
        12,
        0,
        False,
        *(colours if normalizes else ((0.0,) * 3, (1.0,) * 3)),
        3,
        "graph",
        "data",
        IMAGE,
        70,
        (336, 337),
        patch=4,
    )
    seen = cut_picture(picture(*size), vision)
    assert vision.fewest <= rows_of(seen, vision) == count <= 70
    inputs = looked_at(seen.pieces[0], vision)
    order = np.lexsort(inputs[bundle.PLACES].T)
    np.testing.assert_array_equal(inputs[bundle.PLACES][order], places[0][: 9 * count])
    np.testing.assert_allclose(inputs[bundle.PIXELS][order], pixels[0][: 9 * count], atol=1e-5)
    squares = inputs[bundle.PLACES].reshape(count, 9, 2) // 3
    np.testing.assert_array_equal(squares, np.broadcast_to(squares[:, :1], squares.shape))
    text = picture_text(seen.grid, vision, {IMAGE: "i", 336: "(", 337: ")"}.__getitem__)
    assert text == f"({'i' * count})"


@pytest.mark.parametrize(
    "size", [(64, 64), (200, 90), (31, 77), (2, 399), (300, 2), (3, 3), (65, 33), (52, 40)]
)
def test_pictures_of_any_size_are_those_of_transformers(size):
    vision = replace(SPLITTING, size=10, grid=bundle.PixelGrid(400, 3000, (3, 3), 2), resample=3)
    found = in_grid([[picture(*size)]])
    [[_, lines, columns]] = np.array(found["image_grid_thw"])
    squares = np.array(found["pixel_values"]).reshape(lines // 2, columns // 2, 2, 2, 3, 2, 5, 5)
    expected = squares[..., 0, :, :].transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, 5 * lines, -1)
    seen = cut_picture(picture(*size), vision)
    np.testing.assert_allclose(normalized(seen.pieces[0], vision)[0], expected, atol=1e-5)
    assert seen.grid == (lines // 2, columns // 2)
    assert picture_text(seen.grid, vision, lambda _: "i") == "i" * (lines * columns // 4)


def test_logits_behind_pictures_are_those_of_transformers(made, llm):
    require_same_logits(made[0], llm)


@pytest.mark.parametrize("kind", ["qwen3_5_moe", "qwen3_vl_moe"])
def test_logits_of_experts_behind_pictures_are_those_of_transformers(tmp_path, kind):
    model = save_pictured(tmp_path / "checkpoint", kind)
    options = ExportOptions(precision="fp32")
    export.make(tmp_path / "checkpoint", tmp_path / "bundle", None, options)
    with LLM(tmp_path / "bundle", threads=1, context=CONTEXT) as llm:
        require_same_logits(model, llm)


@torch.no_grad()
def require_same_logits(model, llm):
    given = [picture(60, 20), picture(20, 60, seed=1)]
    tokens = llm.chat_tokens(asked(*given))
    read = inputs(model, tokens, *given)
    viewer = Viewer(llm.bundle, llm.tokenizer, 1)
    seen = viewer.look(tokens, viewer.open(given, CONTEXT))()
    grids = ("image_grid_thw", "image_position_ids")
    grids = [read[name] for name in grids if name in read]
    features = model.model.get_image_features(read["pixel_values"], *grids)
    rows = np.concatenate([each.numpy() for each in features.pooler_output])
    for each in getattr(features, "deepstack_features", ()):
        rows = np.concatenate([rows, torch.cat(each).numpy()], 1)
    np.testing.assert_allclose(seen.rows, rows, atol=1e-4)
    text = Text(load(llm.bundle))
    text.sequence.pictures = seen
    expected = model(**read).logits[0].numpy()
    assert distance(text.read(tokens, len(tokens)), expected) < 1e-4


def test_texts_have_the_same_bits_whether_or_not_pictures_are_read(tmp_path):
    save_pictured(tmp_path / "checkpoint", "qwen3_vl")
    options = ExportOptions(precision="fp32")
    found = []
    for name in ("bundle", "blind"):
        export.make(tmp_path / "checkpoint", tmp_path / name, None, options)
        found.append(Text(load(tmp_path / name)).read(PROMPT))
        (tmp_path / "checkpoint" / "preprocessor_config.json").unlink(missing_ok=True)
    np.testing.assert_array_equal(*found)
    opened = [bundle.load(tmp_path / name) for name in ("bundle", "blind")]
    assert opened[1].target.vision is None
    wish = PlacementRequest({bundle.TARGET: Placement(HOST)}, context=CONTEXT, sequences=2)
    [sees], [blind] = (plan(each, wish, {HOST: 1 << 34}).demands for each in opened)
    rows = 2 * CONTEXT * 3 * opened[0].target.hidden_size  # of the stream, and of two layers
    assert sees.workspace - blind.workspace > 4 * rows


@pytest.mark.parametrize("draft", ["none", "model", "lookup", "recycling", "layer-skip", "auto"])
def test_drafts_behind_pictures_do_not_change_texts(made, draft):
    messages = asked(picture(60, 20))
    options = {"max_new_tokens": NEW}
    if draft == "layer-skip" and recurrent(made[0]):
        return  # its layers cannot be left out
    with cheapen(LLM(made[1], threads=1, context=CONTEXT, draft=draft)) as llm:
        greedy = llm.chat(messages, **options)
        sampled = llm.chat(messages, temperature=0.9, seed=3, **options)
        plain = llm.chat(messages, temperature=0.9, seed=3, draft_source="none", **options)
        told = llm.chat(messages, prediction=made[2][: NEW // 2], **options)
    assert greedy.tokens == told.tokens == made[2]
    assert sampled.tokens == plain.tokens
    assert draft == "none" or told.accepted


def test_passes_end_anywhere_in_many_pictures(made, llm):
    """The prompt is longer than two passes, of which each would end in some picture."""
    llm.forget()
    vision = llm.bundle.target.vision
    few = vision.grid is not None or (vision.together and not vision.patch)
    given = [picture(40, 32, seed) for seed in range(18 if few else 5)]
    messages = asked(*given)
    tokens = llm.chat_tokens(messages)
    assert len(tokens) > 256
    found = llm.chat(messages, max_new_tokens=NEW)
    assert found.tokens == by_transformers(made[0], tokens, *given)


def test_what_was_evicted_within_a_picture_is_read_again(made, llm):
    llm.forget()
    messages = asked(picture(40, 32), picture(40, 32, seed=1))
    expected = llm.chat(messages, max_new_tokens=8)
    most = max(llm.bundle.target.vision.rows, 9)
    for kept in range(expected.prompt_tokens - 1, 0, -3):
        target = inside(llm).engine.target
        prefixes = target.prefixes
        pool = target.pool
        prefixes.evict(pool.used - kept)
        again = llm.chat(messages, max_new_tokens=8)
        assert again.tokens == expected.tokens
        assert (0 if recurrent(made[0]) else kept - most) <= again.reused <= kept


def test_a_later_turn_shares_what_was_read_of_its_pictures(llm):
    first = asked(picture(60, 20))
    answer = llm.chat(first, max_new_tokens=8)
    said = {"role": "assistant", "content": [{"type": "text", "text": "a cat"}]}
    later = [*first, said, {"role": "user", "content": "and now?"}]
    shared = llm.chat(later, max_new_tokens=NEW)
    assert shared.reused >= answer.prompt_tokens - 1
    llm.forget()
    alone = llm.chat(later, max_new_tokens=NEW)
    assert (alone.reused, alone.tokens) == (0, shared.tokens)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@drawn(st.lists(st.integers(0, 3), min_size=2, max_size=6))
def test_pictures_of_one_size_share_no_rows(llm, seeds):
    """Whoever came before: a text is what it is alone, and shares rows of its own picture."""
    llm.forget()
    before = set()
    for seed in seeds:
        messages = asked(picture(40, 32, seed))
        found = llm.chat(messages, max_new_tokens=8)
        marks = llm.chat_tokens(messages)
        own = marks.index(llm.bundle.target.vision.token)
        assert found.tokens == alone(llm, seed)
        assert (found.reused > own) == (seed in before)
        before.add(seed)


_ALONE = {}


def alone(llm, seed):
    key = llm.bundle.path, seed
    if key not in _ALONE:
        with LLM(llm.bundle.path, threads=1, context=CONTEXT, draft="none") as fresh:
            _ALONE[key] = fresh.chat(asked(picture(40, 32, seed)), max_new_tokens=8).tokens
    return _ALONE[key]


def test_several_texts_with_pictures_at_once(llm):
    llm.forget()
    streams = [llm.chat_stream(asked(picture(40, 32, seed)), max_new_tokens=8) for seed in range(4)]
    streams += [llm.chat_stream([{"role": "user", "content": "hello"}], max_new_tokens=8)]
    with ThreadPoolExecutor(5) as threads:
        found = [each.tokens for each in threads.map(lambda s: s.finish(), streams)]
    assert found[:4] == [alone(llm, seed) for seed in range(4)]


def test_sessions_with_pictures(made, llm, tmp_path):
    with llm.session() as session:
        text = session.chat(asked(picture(40, 32)), max_new_tokens=8)
        session.save(tmp_path / "session")
    llm.forget()
    with llm.load_session(tmp_path / "session") as session:
        again = session.chat(asked(picture(40, 32)), max_new_tokens=8)
        assert again.tokens == text.tokens
        assert again.reused >= (0 if recurrent(made[0]) else text.prompt_tokens - 1)
        other = session.chat(asked(picture(40, 32, seed=1)), max_new_tokens=8)
        assert other.reused < text.prompt_tokens / 2


def test_portable_graphs_read_pictures(made, monkeypatch, own_cache):
    monkeypatch.setattr("edgespec.llm.load.place.library", lambda: None)
    if recurrent(made[0]):
        return  # the CPU's operators alone run it
    with LLM(made[1], threads=1, context=CONTEXT, draft="none") as llm:
        assert llm.generate("def f", max_new_tokens=4).new_tokens == 4
        if llm.bundle.target.vision.together:
            with pytest.raises(InputError, match="rows see each other, which the CPU alone"):
                llm.chat(asked(picture(60, 20)))
            return
        found = llm.chat(asked(picture(60, 20)), max_new_tokens=NEW)
    assert (found.exact, found.tokens) == (False, made[2])


# How pictures are given


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


def test_pictures_must_fit(llm):
    with pytest.raises(ContextLengthError, match=r"200 images of (4|9|35) tokens"):
        llm.chat(asked(*[b"never opened"] * 200))
    with pytest.raises(ContextLengthError, match="too long"):
        llm.chat(asked(*[picture(64, 64)] * (CONTEXT // llm.bundle.target.vision.fewest - 1)))


def test_marks_in_texts_are_no_pictures(llm):
    for mark in ("<image>", llm.tokenizer.decode([llm.bundle.target.vision.mark], False)):
        with pytest.raises(InputError, match=r"leave <.*image> out of texts"):
            llm.chat(asked(picture(40, 32), text=mark))
    assert llm.chat([{"role": "user", "content": "<image>"}], max_new_tokens=2).new_tokens == 2


@pytest.mark.parametrize("kind", ["audio", "input_audio", "video"])
def test_sounds_and_videos_are_refused_by_name(llm, kind):
    with pytest.raises(InputError, match=f"a content has the part .*'{kind}'.* or image"):
        llm.chat([{"role": "user", "content": [{"type": kind, kind: "a.bin"}]}])


@pytest.mark.parametrize(
    "wrong", [{"patch": 7}, {"patch": -4}, {"patch": 4096, "size": 4096, "rows": 4096}], ids=str
)
def test_sizes_of_pictures_in_manifests_are_checked(llm, wrong):
    manifest = llm.bundle.manifest
    target = llm.bundle.target
    damaged = replace(target, vision=replace(target.vision, **wrong))
    found = manifest_fault(replace(manifest, roles={**manifest.roles, "target": damaged}))
    assert "vision.patch" in found


def test_only_users_show_pictures(llm):
    shown = {"role": "assistant", "content": [{"type": "image", "image": PNG}]}
    with pytest.raises(InputError, match="a message of assistant has an image"):
        llm.chat([shown])


def test_videos_are_refused(llm):
    shown = {"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}
    with pytest.raises(InputError, match="video"):
        llm.chat([shown])


def test_a_picture_that_is_all_but_a_line_is_refused():
    vision = replace(SPLITTING, grid=bundle.PixelGrid(400, 3000, (3, 3), 2))
    with pytest.raises(InputError, match="300 x 1 pixels: give one whose sides differ by a"):
        cut_picture(picture(300, 1), vision)


def test_a_model_of_text_alone_says_what_it_is():
    with LLM(threads=1) as embedded, pytest.raises(InputError, match="llama of text alone"):
        embedded.chat(asked(PNG))


def test_without_pillow_the_remedy_is_named(llm, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match=r"\.\[images\]"):
        llm.chat(asked(PNG))
