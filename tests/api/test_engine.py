"""Texts of native graphs, end to end: bundles of small random pairs, and the operators' library."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from checkpoints import RECURRENT
from engines import Given
from gpus import usable
from pairs import LONG_PROMPT, SHORT_PROMPT

from edgespec import bundle as bundles
from edgespec.api import engine as engines
from edgespec.api import models
from edgespec.api.llm import LLM, is_native
from edgespec.api.loading import LoadOptions
from edgespec.api.options import GenerationOptions
from edgespec.errors import InputError, MemoryLimitError
from edgespec.measuring.bits import compare_bits
from edgespec.runtime.kernels import library
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.speculation.generation import Limits, Request

with_library = pytest.mark.skipif(library() is None, reason="the operators are not built")

NAMES = ("llama", "half", "small-caches", "stranger")


@pytest.fixture(scope="module")
def native(pairs):
    loaded = {}

    def load(name, draft="auto", **options):
        key = name, draft, *sorted(options.items())
        if key not in loaded:
            asked = LoadOptions(draft=draft, threads=2, context=512, **options)
            loaded[key] = LLM(bundles.load(pairs.pair(name).path), asked)
        return loaded[key]

    return load


def nothing_is_left(llm):
    llm.forget()
    return not any(model.pool.used for model in llm.models.values())


@with_library
@pytest.mark.parametrize("name", ["llama", *RECURRENT])
def test_greedy_text_is_that_of_transformers(native, pairs, name):
    expected = pairs.greedy(name)
    for source in native(name).draft_sources:
        stream = native(name).stream(LONG_PROMPT, max_new_tokens=128, draft_source=source)
        assert stream.finish().tokens == expected


@with_library
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 4}])
def test_drafts_never_change_a_text(native, name, how):
    for prompt in (LONG_PROMPT, SHORT_PROMPT):
        texts = {}
        for source in ("none", "lookup", "model", "auto"):
            stream = native(name).stream(prompt, max_new_tokens=64, draft_source=source, **how)
            pieces = list(stream)
            assert "".join(pieces) == stream.result.text
            assert all(pieces)
            texts[source] = stream.result.tokens
        assert len(texts["none"]) == 64
        assert texts == dict.fromkeys(texts, texts["none"])
    assert nothing_is_left(native(name))


@with_library
@pytest.mark.parametrize("name", ["lfm2-draft", "qwen3_5_text-draft", "lfm2-stranger"])
def test_recurrent_models_draft_and_are_drafted_for(native, name, monkeypatch):
    llm = native(name)
    monkeypatch.setattr(llm.engine._cost, "seconds", lambda rows: 1 + 0.05 * rows)
    [drafter] = [each for each in llm.engine._drafters if each.name == "model"]
    monkeypatch.setattr(drafter._cost, "seconds", lambda rows: 0.05 + 0.02 * rows)
    for how in ({}, {"temperature": 0.8, "seed": 4}):
        made = {
            source: llm.stream(SHORT_PROMPT, max_new_tokens=64, draft_source=source, **how).finish()
            for source in ("none", "lookup", "model", "auto")
        }
        assert {tuple(each.tokens) for each in made.values()} == {tuple(made["none"].tokens)}
        assert made["model"].drafted > 20
        assert name == "lfm2-stranger" or made["model"].accepted > 20
    llm.forget()
    for model in llm.models.values():
        held = model.pool.recurrent
        assert model.pool.used == 0
        assert held is None or held.rows.used == held.states.used == 0


@with_library
@pytest.mark.parametrize("name", [*NAMES, *RECURRENT])
def test_rows_have_the_same_bits_in_any_company(native, name):
    llm = native(name)
    tokens = llm.tokenizer.encode(LONG_PROMPT)
    bits = compare_bits(llm.engine.target, tokens, len(tokens) - 60)
    assert (bits.rows > 100, bits.differing) == (True, 0)
    assert nothing_is_left(llm)


@with_library
def test_sequences_at_once_are_those_of_each_alone(native):
    llm = native("llama")
    prompts = [llm.tokenizer.encode(text) for text in (LONG_PROMPT, SHORT_PROMPT, "x = 1\n", "def")]

    def request(number):
        options = GenerationOptions(temperature=number % 2, seed=number)
        sampler = Sampler(options, llm.tokenizer.vocab_size)
        return Request(prompts[number], sampler, Limits(40, llm.context_length))

    made = [llm.engine.add(request(number)) for number in range(4)]
    while llm.engine.running:
        llm.engine.step()
    for number, generation in enumerate(made):
        rounds = list(llm.engine.generate(request(number)))
        alone = [token for each in rounds for token in each.tokens]
        assert generation.tokens[len(prompts[number]) :] == alone


@with_library
def test_a_good_draft_is_used_and_saves_passes(native, monkeypatch):
    [drafter] = [each for each in native("llama").engine._drafters if each.name == "model"]
    monkeypatch.setattr(drafter, "_cost", Given(0.02, 0.01))
    monkeypatch.setattr(native("llama").engine, "_cost", Given(1.0, 0.05))
    result = native("llama").stream(LONG_PROMPT, max_new_tokens=128, draft_source="model").finish()
    assert result.mean_accepted_length > 1.2
    assert result.accepted + result.rounds == 127
    assert result.sources.keys() <= {"model", "none"}
    assert (result.engine, result.draft_engine, result.exact) == ("cpu:native",) * 2 + (True,)
    assert result.predicted_tokens_per_second > 0


@with_library
def test_texts_end_as_asked(native):
    llm = native("llama")
    whole = llm.stream(SHORT_PROMPT, max_new_tokens=60).finish()
    stop = whole.text[10:14]
    for source in llm.draft_sources:
        stream = llm.stream(SHORT_PROMPT, max_new_tokens=60, stop=stop, draft_source=source)
        result = stream.finish()
        assert (result.text, result.finish_reason) == (whole.text.partition(stop)[0], "stop")
        assert result.new_tokens == 1 + sum(len(made.tokens) for made in stream.rounds)
    ended = llm.stream(SHORT_PROMPT, stop_token_ids=[whole.tokens[5]]).finish()
    assert ended.finish_reason == "stop"
    assert ended.tokens == whole.tokens[: whole.tokens.index(whole.tokens[5]) + 1]
    stream = llm.stream(SHORT_PROMPT, max_new_tokens=60)
    next(iter(stream))
    stream.cancel()
    assert stream.finish().finish_reason == "cancelled"
    assert nothing_is_left(llm)


@with_library
def test_logprobs_are_the_same_with_drafts(native):
    plain, drafted = (
        native("llama").stream(SHORT_PROMPT, max_new_tokens=20, logprobs=2, draft_source=s).finish()
        for s in ("none", "auto")
    )
    assert plain.logprobs == drafted.logprobs
    assert [each.token for each in plain.logprobs] == plain.tokens


@with_library
def test_what_cannot_be_is_refused(native, pairs):
    with pytest.raises(
        InputError, match=r"draft_source is 'model': .* offers none, lookup, recycling$"
    ):
        native("llama", "lookup").stream("x", draft_source="model")
    bundle = bundles.load(pairs.pair("llama").path)
    alone = {bundles.TARGET: bundle.target}
    lonely = replace(bundle, manifest=replace(bundle.manifest, roles=alone))
    with pytest.raises(
        InputError, match="nothing that drafts by model: use another --draft, of none"
    ):
        LLM(lonely, LoadOptions(draft="model"))
    with pytest.raises(MemoryLimitError, match=r"a context of 500 tokens needs .* and 0 MiB are"):
        LLM(bundle, LoadOptions(draft="none", context=500, memory=1000))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": "openvino:cpu"}, "it has no device openvino:cpu"),
        ({"gpu_layers": 1}, "it has no option gpu_layers"),
        ({"pipeline": "overlap"}, "it drafts and verifies in turn"),
    ],
)
def test_what_only_the_other_path_has_goes_there(pairs, caplog, options, reason):
    bundle = bundles.load(pairs.pair("llama").path)
    with caplog.at_level(logging.INFO, "edgespec"):
        assert not is_native(bundle, LoadOptions(**options))
    assert caplog.messages == [f"the native graph is not used: {reason}"]


def test_bundles_without_native_graphs_go_to_the_other_path(pairs):
    bundle = bundles.load(pairs.pair("llama").path)
    roles = bundle.manifest.roles
    bare = {name: replace(role, native=None) for name, role in roles.items()}
    for chosen, source, expected in (
        (roles, "auto", True),
        (bare, "none", False),
        ({**roles, bundles.DRAFT: bare[bundles.DRAFT]}, "auto", False),
        ({**roles, bundles.DRAFT: bare[bundles.DRAFT]}, "lookup", True),
    ):
        one = replace(bundle, manifest=replace(bundle.manifest, roles=chosen))
        assert is_native(one, LoadOptions(draft=source)) is expected


def test_without_the_operators_portable_graphs_run(pairs, caplog, monkeypatch):
    for module in (engines, models):
        monkeypatch.setattr(module, "library", lambda: None)
    monkeypatch.setattr(models, "missing_kernels", lambda: "no compiled kernels: reinstall")
    bundle = bundles.load(pairs.pair("llama").path)
    assert is_native(bundle, LoadOptions())
    assert not is_native(bundles.load(pairs.pair("qwen3_5_text").path), LoadOptions())
    with LLM(bundle, LoadOptions(threads=2, context=512)) as llm:
        assert "no compiled kernels: reinstall" in caplog.text
        for source in llm.draft_sources:
            result = llm.generate(LONG_PROMPT, max_new_tokens=128, draft_source=source)
            assert result.tokens == pairs.greedy("llama")
            assert (result.engine, result.draft_engine, result.exact) == ("cpu", "cpu", False)


@with_library
@pytest.mark.parametrize("gpu", ["webgpu:0", "cuda:0"])
def test_models_run_on_gpus(pairs, gpu, tmp_path):
    gpu = usable(gpu)
    bundle = bundles.load(pairs.pair("llama").path)
    plain = pairs.greedy("llama")[:24]
    for devices in ({"device": gpu}, {"draft_device": gpu}):
        with LLM(bundle, LoadOptions(draft="model", context=400, **devices)) as llm:
            session = llm.session()
            result = session.generate(LONG_PROMPT, max_new_tokens=24)
            assert result.tokens == plain
            assert gpu in (result.engine, result.draft_engine)
            assert result.exact is (result.engine == "cpu:native")
            session.save(tmp_path / "file")
            llm.forget()
            with llm.load_session(tmp_path / "file") as again:
                assert again.generate(LONG_PROMPT, max_new_tokens=24).tokens == plain


@with_library
@pytest.mark.parametrize("name", ["llama", "qwen3_5_text-draft"])
def test_run_and_bench_use_native_graphs(pairs, cli, tmp_path, name):
    path = pairs.pair(name).path
    result = cli("run", path, SHORT_PROMPT, "-n", 30, "--threads", 1, "--explain")
    assert result.code == 0
    assert "engine: cpu:native" in result.err
    assert "draft: auto (" in result.err
    json_result = cli("run", path, SHORT_PROMPT, "-n", 30, "--json", "--draft", "none")
    assert json.loads(json_result.out)["text"] + "\n" == result.out
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(LONG_PROMPT)
    words = ["--prompts", prompt, "--draft", "lookup,model,auto", "--repeat", 1, "-n", 30]
    measured = cli("bench", path, *words, "--bits", 20, "--json")
    assert measured.code == 0
    facts = json.loads(measured.out)
    assert [line["name"] for line in facts["settings"]] == ["plain", "lookup", "model", "auto"]
    assert {line["equal_to_plain"] for line in facts["settings"]} == {"yes"}
    assert facts["engines"]["target"] == "cpu:native"
    assert facts["bits"]["rows"] > 20
    assert facts["bits"]["differing"] == 0


def test_comparing_bits_sees_a_row_that_depends_on_others():
    from toys import toy_model

    tokens = np.random.default_rng(0).integers(50, size=60).tolist()
    assert compare_bits(toy_model(), tokens, 20).differing == 0
    model = toy_model()
    exact = model._graph

    def inexact(feeds):
        return {"logits": exact(feeds)["logits"] + np.float32(1e-6 * len(feeds["input_ids"]))}

    model._graph = inexact
    found = compare_bits(model, tokens, 20)
    assert found.differing > 20
    assert found.where[0].startswith("chunks of 64 at 2")
