"""Tests that texts which share passes stay bit for bit what they are alone."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from checkpoints import make_checkpoint, write_tokenizer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pairs import ENGINES
from twins import Twins, joint_bundle, make_round

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.engines import engine
from edgespec.runtime.execution import exactness, joint
from edgespec.runtime.execution.joint import JointPasses
from edgespec.runtime.shapes import BORDER

KINDS = {
    "llama": ("llama", {}, ExportOptions("int4")),
    "in stages": ("qwen3", {}, ExportOptions("int8", cut_layers=(1,))),
    "windows": ("gemma3_text", {"sliding_window": 24}, ExportOptions("fp32")),
    "sinks": ("gpt_oss", {}, ExportOptions("fp32")),
    "caches in 8 bits": ("qwen2", {}, ExportOptions("int8", kv_precision="int8")),
    "half precision": ("llama", {}, ExportOptions("int8", kv_precision="fp16")),
}

EACH = [Phase.generate]  # an example takes too long to be made smaller


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    known = {}

    def model(kind, engine_name):
        if kind not in known:
            known[kind] = joint_bundle(tmp_path_factory.mktemp("joint"), *KINDS[kind])
        if (kind, engine_name) not in known:
            engines = (engine(engine_name),) * len(known[kind].target.stages)
            known[kind, engine_name] = exactness.load(known[kind], TARGET, engines, 2)
        return known[kind, engine_name]

    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine_name", ENGINES)
def test_texts_share_a_pass_and_each_stays_what_it_is(models, kind, engine_name):
    model = models(kind, engine_name)
    assert model.joins_texts
    assert model.exact
    rng, passes = np.random.default_rng(0), JointPasses(model)
    texts = [Twins(model, rng, length) for length in (5, 70, 31)]
    for sizes in ((0, 0, 0), (3, 0, 6), (1, 9, 2), (0, 0, 12), (4, 4, 4)):
        assert make_round(passes, dict(zip(texts, sizes, strict=True))) == [3]


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), phases=EACH)
@given(data=st.data())
def test_texts_come_and_go_at_any_round(models, data):
    let_come_and_go(models, data)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), phases=EACH)
@given(data=st.data())
def test_texts_change_tables_as_they_grow(models, data):
    of_length = patch.object(joint, "_most_rows", lambda runner: 1 << runner.length.bit_length())
    with of_length, patch.object(joint, "parts", lambda lengths, _: lengths):
        let_come_and_go(models, data)


def let_come_and_go(models, data):
    model = models("llama", ENGINES[data.draw(st.integers(0, 1))])
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    passes, texts = JointPasses(model), []
    for _ in range(data.draw(st.integers(3, 8))):
        if len(texts) < 5 and data.draw(st.booleans()):
            texts.append(Twins(model, rng, data.draw(st.integers(1, 300))))
        if texts and data.draw(st.integers(0, 4)) == 0:
            over = texts.pop(data.draw(st.integers(0, len(texts) - 1)))
            passes.leave(over.joined)
            if data.draw(st.booleans()):  # its runner is used again, for a text that begins alike
                kept = data.draw(st.integers(0, over.joined.length))
                for runner in (over.joined, over.alone):
                    runner.resume([*runner.tokens[:kept], 1])
                    runner.prefill([7, 8, 9])
                texts.append(over)
        asking = [each for each in texts if data.draw(st.integers(0, 5))]
        if asking:
            make_round(passes, {each: data.draw(st.integers(0, 7)) for each in asking})


def test_after_a_long_text_the_others_have_caches_as_they_need(models):
    model = models("llama", ENGINES[0])
    rng, passes = np.random.default_rng(5), JointPasses(model)
    texts = [Twins(model, rng, length) for length in (300, 40, 40, 40)]

    def bytes_of_short():
        return [each.joined.bytes for each in texts[1:]]

    in_one = patch.object(joint, "parts", lambda most, _: [max(most, default=0)] * len(most))
    with in_one, patch.object(joint, "_most_rows", lambda it: 256 if it.length < 256 else 512):
        assert make_round(passes, dict.fromkeys(texts, 0)) == [4]
        beside_it = bytes_of_short()
        passes.leave(texts[0].joined)
        assert make_round(passes, dict.fromkeys(texts[1:], 0)) == [3]
    assert all(now < before for now, before in zip(bytes_of_short(), beside_it, strict=True))
    assert texts[0].joined.length == 301  # its rows are still there for a text that begins alike


def test_more_rows_than_a_call_has_are_split(models):
    model = models("llama", ENGINES[0])
    most = model.shapes.rows[-1]
    rng, passes = np.random.default_rng(2), JointPasses(model)
    texts = [Twins(model, rng, 9) for _ in range(5)]
    sizes = make_round(passes, dict.fromkeys(texts, most // 2 - 1))
    assert sorted(sizes) == [1, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("engine_name", ENGINES)
def test_texts_on_both_sides_of_the_border_part(models, engine_name):
    model = models("llama", engine_name)
    rng, passes = np.random.default_rng(3), JointPasses(model)
    texts = [Twins(model, rng, length) for length in (BORDER - 6, BORDER - 9, 40, BORDER + 50)]
    seen = set()
    for _ in range(12):
        seen.add(tuple(sorted(make_round(passes, dict.fromkeys(texts, 0)))))
    assert seen == {(1, 3), (2, 2)}
    assert [each.joined.length > BORDER for each in texts] == [True, True, False, True]


def test_recurrent_models_keep_turns(tmp_path):
    make_checkpoint(tmp_path / "target", "lfm2")
    write_tokenizer(tmp_path / "target", 331)
    export_bundle(tmp_path / "target", tmp_path / "bundle", None, ExportOptions("fp32"))
    bundle = bundles.load(tmp_path / "bundle")
    assert bundle.target.stages_of_texts == ()
    model = exactness.load(bundle, TARGET, (engine(ENGINES[0]),), 2)
    assert not model.joins_texts
    rng, passes = np.random.default_rng(4), JointPasses(model)
    texts = [Twins(model, rng, 9) for _ in range(2)]
    assert make_round(passes, dict.fromkeys(texts, 0)) == [1, 1]
