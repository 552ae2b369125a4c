"""Pictures: their rows are transformers', and texts behind them are plain decoding's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from native_llms import cheapen
from nodes import MISSING
from parity import PROMPT, Text, distance, load
from processors import inputs
from towers import MODELS, asked, picture, save_pictured

from edgespec import LLM, bundle, export
from edgespec.bundle.checks import manifest_fault
from edgespec.errors import ContextLengthError, InputError
from edgespec.export import ExportOptions
from edgespec.llm.images import Viewer
from edgespec.llm.llm import inside
from edgespec.runtime.plan import HOST, Placement, PlacementRequest, plan

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

NEW, CONTEXT = 40, 512


def recurrent(model):
    return model.config.model_type in ("lfm2_vl", "qwen3_5")


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
    grids = ("image_grid_thw", "image_position_ids", "spatial_shapes", "pixel_attention_mask")
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
        pytest.skip("its layers cannot be left out")
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
    count = 12 if vision.tiles is not None else 18 if few else 5
    given = [picture(40, 32, seed) for seed in range(count)]
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
        pytest.skip("the CPU's operators alone run it")
    with LLM(made[1], threads=1, context=CONTEXT, draft="none") as llm:
        assert llm.generate("def f", max_new_tokens=4).new_tokens == 4
        if llm.bundle.target.vision.together:
            with pytest.raises(InputError, match="rows see each other, which the CPU alone"):
                llm.chat(asked(picture(60, 20)))
            return
        found = llm.chat(asked(picture(60, 20)), max_new_tokens=NEW)
    assert (found.exact, found.tokens) == (False, made[2])


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


@pytest.mark.parametrize(
    "wrong", [{"patch": 7}, {"patch": -4}, {"patch": 4096, "size": 4096, "rows": 4096}], ids=str
)
def test_sizes_of_pictures_in_manifests_are_checked(llm, wrong):
    manifest = llm.bundle.manifest
    target = llm.bundle.target
    damaged = replace(target, vision=replace(target.vision, **wrong))
    found = manifest_fault(replace(manifest, roles={**manifest.roles, "target": damaged}))
    assert "vision.patch" in found
