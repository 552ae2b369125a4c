"""Texts by each draft source, end to end, over small random pairs: never changed, often drafted."""

from __future__ import annotations

import time

import pytest
from foreign import TEXTS, ForeignPairs
from gpus import usable
from native_llms import cheapen, loaded, with_library
from pairs import LONG_PROMPT, NEW_TOKENS, SHORT_PROMPT, with_eos, with_skips
from sessions import OPTIONS, turns

from edgespec import LLM
from edgespec.errors import BundleError, DeviceError, InputError
from edgespec.llm.llm import inside
from edgespec.llm.load import drafters as devices

pytestmark = with_library

SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 4}
PENALIZED = {
    "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2,
    "repeat_last_n": 40, "logit_bias": {7: 1.0, 40: -2.0},
}  # fmt: skip
MODES = [{}, SAMPLED, PENALIZED, {**SAMPLED, **PENALIZED}]
modes = pytest.mark.parametrize("how", MODES, ids=["greedy", "sampled", "penalty", "all"])
FOREIGN = {"permuted": 20, "poorer": None, "greek": None, "letters": 0}
"""Pairs whose models have different vocabularies, and how many drafts are accepted at least."""

# By pair and draft source: how many drafted tokens of 127 become text at least.
SOURCES = {
    ("llama", "model"): 20, ("llama", "parallel"): 1, ("llama", "layer-skip"): 10,
    ("llama", "recycling"): 10, ("llama", "lookup"): 1, ("llama", "auto"): 10,
    ("twin", "model"): 90, ("stranger", "model"): 0, ("lfm2-draft", "model"): 20,
    ("qwen3_5_text-draft", "model"): 20, ("lfm2-stranger", "model"): 0,
    ("granitemoehybrid-draft", "model"): 20,
    ("head", "head"): 50, ("head", "auto"): 50, ("mtp", "head"): 50, ("mtp", "auto"): 50,
    ("dflash2", "head"): 50, ("dflash", "head"): 50, ("dspark", "head"): 50, ("dspark", "auto"): 50,
    ("peagle", "head"): 50, ("assistant", "head"): 50, ("assistant", "auto"): 50,
}  # fmt: skip


@pytest.fixture(scope="module")
def load(pairs, tmp_path_factory):
    """Loads pairs, with costs that are given instead of measured; each once."""
    foreign = ForeignPairs(tmp_path_factory.mktemp("foreign"))
    made = {}

    def load(name, draft="auto"):
        if (name, draft) not in made:
            path = foreign.path(name) if name in FOREIGN else pairs.pair(name).path
            if draft == "layer-skip":
                path = with_skips(path, tmp_path_factory.mktemp("skips") / "bundle", (2, 3))
            made[name, draft] = cheapen(LLM(path, draft=draft, threads=1, context=512))
        return made[name, draft]

    return load


@modes
@pytest.mark.parametrize(("name", "draft"), SOURCES, ids=str)
def test_a_source_never_changes_a_text_and_is_often_right(load, name, draft, how):
    llm = load(name, draft)
    plain = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, draft_source="none", **how)
    for nodes, width in ((31, 4), (3, 1), (6, 3)):
        llm.forget()  # of a prompt that it shares a head has no features
        result = llm.generate(
            LONG_PROMPT,
            max_new_tokens=NEW_TOKENS,
            num_assistant_tokens=nodes,
            tree_width=width,
            **how,
        )
        assert result.tokens == plain.tokens
        assert result.accepted + result.rounds == NEW_TOKENS - 1
        assert how or result.accepted >= SOURCES[name, draft]
        assert draft == "auto" or set(result.sources) <= {draft, "none"}
    prompts = [LONG_PROMPT, SHORT_PROMPT, TEXTS[1]]
    how = {"max_new_tokens": 40, **how}
    alone = [llm.generate(each, draft_source="none", **how).tokens for each in prompts]
    assert [each.tokens for each in llm.generate(prompts, **how)] == alone
    llm.forget()
    for model in inside(llm).models.values():
        held = model.pool.recurrent
        assert model.pool.used == 0
        assert held is None or held.rows.used == held.states.used == 0


@modes
@pytest.mark.parametrize("name", FOREIGN)
def test_drafts_of_another_vocabulary_never_change_texts(load, name, how):
    llm = load(name, "model")
    least = FOREIGN[name]
    prompts = [LONG_PROMPT, SHORT_PROMPT, TEXTS[1]]
    options = {"max_new_tokens": 40, **how}
    alone = [llm.generate(each, draft_source="none", **options).tokens for each in prompts]
    assert [each.tokens for each in llm.generate(prompts, **options)] == alone
    if not how and least is not None:
        assert llm.generate(LONG_PROMPT, max_new_tokens=60).accepted > least
    llm.forget()
    assert {model.pool.used for model in inside(llm).models.values()} == {0}


@pytest.mark.parametrize("name", ["head", "mtp", "dflash"])
def test_greedy_tokens_with_a_head_are_those_of_transformers(load, pairs, name):
    result = load(name, "head").generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    assert result.tokens == pairs.greedy(name)
    assert (result.engine, result.draft_engine) == ("cpu:native", "cpu:native")


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        ("head", "head"),
        ("mtp", "head"),
        ("stranger", "model"),
        ("dspark", "head"),
        ("assistant", "head"),
        ("peagle", "head"),
    ],
)
def test_drafts_in_a_session(load, name, draft):
    """A draft that knows 100 positions, fewer than most turns have; heads read rows once."""
    llm = load(name, draft)
    with llm.session() as session:
        for prompt in turns(llm, 6):
            result = session.generate(prompt, **OPTIONS)
            assert result.tokens == llm.generate(prompt, draft_source="none", **OPTIONS).tokens


@pytest.mark.parametrize(
    ("name", "device", "pipeline"),
    [
        ("twin", "cpu", "overlap"),
        ("twin", "openvino:cpu", "overlap"),
        ("twin", "openvino:cpu", "auto"),
        ("twin", "cuda:0", "auto"),
        ("head", "openvino:cpu", "overlap"),
        ("mtp", "cpu#32x768", "overlap"),
        ("head", "cuda:0", "overlap"),
        ("mtp", "cuda:0", "overlap"),
    ],
)
def test_a_draft_goes_on_while_the_target_works(pairs, name, device, pipeline, monkeypatch):
    if device == "openvino:cpu" and pipeline == "auto":  # it stands for a device of its own
        monkeypatch.setattr(devices, "ON_CORES", {"cpu:native"})
    place = {"draft_device": usable(device), "pipeline": pipeline}
    draft = "model" if name == "twin" else "head"
    with cheapen(loaded(pairs, name, draft, **place)) as llm:
        whole = inside(llm).engine.target.graph

        def slow(feeds):  # so that there is time to draft in
            time.sleep(0.02)
            return whole(feeds)

        inside(llm).engine.target.graph = slow
        for how in MODES:
            options = {"max_new_tokens": 40, **how}
            prompts = [LONG_PROMPT, SHORT_PROMPT, TEXTS[1]]
            plain = [llm.generate(each, draft_source="none", **options).tokens for each in prompts]
            llm.forget()  # of what it shares a head has no rows
            made = llm.generate(prompts, **options)
            assert [each.tokens for each in made] == plain
            assert how or sum(each.begun for each in made) > 0
        llm.forget()
        assert {model.pool.used for model in inside(llm).models.values()} == {0}


def test_two_models_on_the_same_cores_take_turns(natives, pairs):
    assert natives("llama", "model").generate(LONG_PROMPT, max_new_tokens=40).begun == 0
    for name, draft in (("llama", "lookup"), ("lfm2-draft", "model"), ("dflash", "auto")):
        with pytest.raises(InputError, match="no draft in use that can go on"):
            loaded(pairs, name, draft, pipeline="overlap")


# Which there are


def test_sources_are_those_of_the_bundle(pairs, natives):
    cheap = "lookup", "recycling"
    for name, draft, sources in (
        ("llama", "auto", ("auto", "none", "model", "parallel", *cheap)),
        ("llama", "none", ("none",)),
        ("llama", "lookup", ("none", *cheap)),
        ("head", "auto", ("auto", "none", "head", *cheap)),
        ("head", "head", ("none", "head", *cheap)),
        ("head", "lookup", ("none", *cheap)),
    ):
        assert natives(name, draft).draft_sources == sources
    offered = r"draft_source is 'model': .* 'lookup' offers none, lookup, recycling$"
    with pytest.raises(InputError, match=offered):
        natives("llama", "lookup").stream("x", draft_source="model")
    for name, draft in (("head", "model"), ("llama", "head"), ("llama", "layer-skip")):
        with pytest.raises(InputError, match=f"nothing that drafts by {draft}: use another"):
            loaded(pairs, name, draft)


def test_each_text_of_a_session_may_have_another_drafter(natives):
    llm = natives("llama")
    with llm.session() as session:
        for prompt, source in zip(turns(llm, 12), llm.draft_sources * 2, strict=True):
            result = session.generate(prompt, draft_source=source, **OPTIONS)
            plain = natives("llama", "none").generate(prompt, **OPTIONS)
            assert (result.draft, result.tokens) == (source, plain.tokens)
            assert not result.drafted or source != "none"


def test_skip_sets_that_do_not_fit_are_refused(pairs, tmp_path):
    path = with_skips(pairs.pair("llama").path, tmp_path / "bundle", (40,))
    with pytest.raises(BundleError, match=r"skip_sets\[0\]"):
        LLM(path, draft="layer-skip")


@pytest.mark.parametrize("source", ["model", "parallel", "layer-skip"])
def test_a_draft_that_fails_is_told_and_drafts_no_more(natives, pairs, tmp_path, caplog, source):
    calls = []
    expected = natives("llama", "none").generate(LONG_PROMPT, **OPTIONS).tokens

    def fail(_):
        calls.append(1)
        raise DeviceError("the device is gone")

    path = with_skips(pairs.pair("llama").path, tmp_path / "bundle", (2, 3))
    with cheapen(LLM(path, threads=1, context=512)) as llm, llm.session() as session:
        [failing] = [each for each in inside(llm).engine.drafters if each.name == source]
        whole = failing.model.graph
        failing.model.graph = fail
        for draft in (source, source, "auto"):
            made = session.generate(LONG_PROMPT, draft_source=draft, **OPTIONS)
            assert made.tokens == expected
        assert len(calls) == 1
        assert len(caplog.messages) == 1
        assert source in caplog.text
        assert "any more: the device is gone" in caplog.text
        assert made.drafted  # by others
        assert (made.draft_engine is None) == (source != "layer-skip")
        if source != "layer-skip":  # whose slots are the target's
            failing.model.pool.arrays.clear()
        session.save(tmp_path / "session")
        failing.model.graph = whole


# What is learned


def test_draft_memory_is_kept(pairs, tmp_path):
    path = tmp_path / "memory"
    with cheapen(loaded(pairs, "llama", "recycling", draft_memory=path)) as llm:
        cold = llm.generate(SHORT_PROMPT, max_new_tokens=80)
        llm.save_draft_memory(path)
        assert cold.draft_memory == "cold"
        with cheapen(loaded(pairs, "llama", "recycling", draft_memory=path)) as again:
            for each in (llm, again):
                each.forget()  # begins with the file's
                result = each.generate(SHORT_PROMPT, max_new_tokens=80)
                assert result.draft_memory == "hot"
                assert result.rounds < cold.rounds
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match="not a draft memory"):
        loaded(pairs, "llama", "recycling", draft_memory=path)


def test_forced_tokens_are_drafted(pairs, tmp_path):
    path = with_eos(pairs.pair("llama").path, tmp_path / "bundle", 0)
    with LLM(path, draft="lookup", threads=1, context=512) as llm:
        for how in MODES:
            options = {"max_new_tokens": 40, "regex": "(hello world ){20}", **how}
            plain = llm.generate(SHORT_PROMPT, draft_source="none", **options)
            result = llm.generate(SHORT_PROMPT, **options)
            assert result.tokens == plain.tokens
            assert any("grammar" in source for source in result.sources)
            assert result.rounds < plain.rounds
