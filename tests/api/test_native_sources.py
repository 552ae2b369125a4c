"""Texts of native graphs by each draft source, end to end, over small random pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engines import Given
from foreign import TEXTS, ForeignPairs
from pairs import LONG_PROMPT, SHORT_PROMPT, with_eos

from edgespec import bundle as bundles
from edgespec.api.llm import LLM, is_native
from edgespec.api.loading import LoadOptions
from edgespec.api.options import GenerationOptions
from edgespec.bundle import SkipSet
from edgespec.errors import BundleError, InputError
from edgespec.runtime.kernels import library
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.speculation.generation import Limits, Request

pytestmark = pytest.mark.skipif(library() is None, reason="the operators are not built")

MODES = [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 4}, {"repetition_penalty": 1.3}]
FOREIGN = {"permuted": True, "poorer": True, "greek": False, "letters": False}

modes = pytest.mark.parametrize("how", MODES, ids=str)


@pytest.fixture(scope="module")
def load(pairs, tmp_path_factory):
    foreign = ForeignPairs(tmp_path_factory.mktemp("foreign"))
    loaded = {}

    def load(name, draft="auto", **options):
        key = name, draft, *options.items()
        if key not in loaded:
            path = foreign.path(name) if name in FOREIGN else pairs.pair(name).path
            bundle = bundles.load(path)
            if draft == "layer-skip":
                sets = (SkipSet((2, 3)),)
                bundle = replace(bundle, manifest=replace(bundle.manifest, skip_sets=sets))
            asked = LoadOptions(draft=draft, threads=1, context=512, **options)
            assert is_native(bundle, asked)
            loaded[key] = LLM(bundle, asked)
        return loaded[key]

    return load


def cheapen(llm, monkeypatch):
    """Makes further rows and calls of drafts cheap, whatever they cost here."""
    for drafter in llm.engine._drafters:
        if hasattr(drafter, "_cost"):
            monkeypatch.setattr(drafter, "_cost", Given(0.02, 0.01))
    monkeypatch.setattr(llm.engine, "_cost", Given(1.0, 0.01))


def at_once(llm, draft, how, n=40):
    """Texts of several prompts that share passes, and each alone without drafts."""
    texts = (LONG_PROMPT, SHORT_PROMPT, TEXTS[1])
    prompts = [llm.tokenizer.encode(text) for text in texts]
    sampler = Sampler(GenerationOptions(**how), llm.tokenizer.vocab_size)

    def request(prompt, draft):
        return Request(prompt, sampler, Limits(n, llm.context_length), draft)

    made = [llm.engine.add(request(prompt, draft)) for prompt in prompts]
    while llm.engine.running:
        llm.engine.step()
    plain = [list(llm.engine.generate(request(prompt, "none"))) for prompt in prompts]
    return (
        [each.tokens[len(prompt) :] for each, prompt in zip(made, prompts, strict=True)],
        [[token for each in rounds for token in each.tokens] for rounds in plain],
    )


@modes
@pytest.mark.parametrize("draft", ["recycling", "parallel", "layer-skip", "auto"])
def test_drafts_never_change_texts(load, draft, how, monkeypatch):
    llm = load("llama", draft)
    cheapen(llm, monkeypatch)
    drafted, plain = at_once(llm, draft, how)
    assert drafted == plain
    result = llm.stream(SHORT_PROMPT, max_new_tokens=60, **how).finish()
    assert result.tokens == (
        llm.stream(SHORT_PROMPT, max_new_tokens=60, draft_source="none", **how).finish().tokens
    )
    assert result.drafted > 0
    assert draft == "auto" or set(result.sources) <= {draft, "none"}
    llm.forget()
    assert {model.pool.used for model in llm.models.values()} == {0}


@pytest.mark.parametrize("draft", ["recycling", "layer-skip"])
def test_drafts_are_accepted(load, draft, monkeypatch):
    llm = load("llama", draft)
    cheapen(llm, monkeypatch)
    for _ in range(2):
        result = llm.stream(SHORT_PROMPT, max_new_tokens=80).finish()
    assert result.rounds < 70
    assert result.accepted + result.rounds == 79


def test_only_one_of_the_dear_sources_is_part_of_auto(load, monkeypatch):
    llm = load("llama")
    assert llm.draft_sources == ("auto", "none", "model", "parallel", "lookup", "recycling")
    cheapen(llm, monkeypatch)
    result = llm.stream(SHORT_PROMPT, max_new_tokens=60).finish()
    assert not any("model" in source for source in result.sources)
    assert any("parallel" in source for source in result.sources)


@modes
def test_a_prediction_saves_rounds(load, how):
    llm = load("llama", "lookup")
    plain = llm.stream(SHORT_PROMPT, max_new_tokens=80, draft_source="none", **how).finish()
    assert plain.accepted_prediction_tokens is None
    prediction = [*plain.tokens[:30], 7, *plain.tokens[31:]]
    result = llm.stream(SHORT_PROMPT, max_new_tokens=80, prediction=prediction, **how).finish()
    assert result.tokens == plain.tokens
    assert result.rounds < 30
    assert "prediction" in result.sources
    assert (result.accepted_prediction_tokens, result.rejected_prediction_tokens) == (79, 1)
    with pytest.raises(InputError, match="token id 9999"):
        llm.stream(SHORT_PROMPT, prediction=[9999])


def test_forced_tokens_are_drafted(pairs, tmp_path):
    path = with_eos(pairs.pair("llama").path, tmp_path / "bundle", 0)
    llm = LLM(bundles.load(path), LoadOptions(draft="lookup", threads=1, context=512))
    for how in MODES:
        options = {"max_new_tokens": 40, "regex": "(hello world ){20}", **how}
        plain = llm.stream(SHORT_PROMPT, draft_source="none", **options).finish()
        result = llm.stream(SHORT_PROMPT, **options).finish()
        assert result.tokens == plain.tokens
        assert any("grammar" in source for source in result.sources)
        assert result.rounds < plain.rounds


@modes
@pytest.mark.parametrize("name", FOREIGN)
def test_drafts_of_another_vocabulary_never_change_texts(load, name, how, monkeypatch):
    llm = load(name, "model")
    [drafter] = [each for each in llm.engine._drafters if each.name == "model"]
    assert drafter._map.shares_enough == FOREIGN[name]
    cheapen(llm, monkeypatch)
    drafted, plain = at_once(llm, "model", how)
    assert drafted == plain
    llm.forget()
    assert {model.pool.used for model in llm.models.values()} == {0}


@pytest.mark.parametrize("name", ["permuted", "letters"])
def test_drafts_of_another_vocabulary_are_accepted(load, name, monkeypatch):
    llm = load(name, "model")
    cheapen(llm, monkeypatch)
    result = llm.stream(LONG_PROMPT, max_new_tokens=60).finish()
    assert result.drafted > 0
    assert result.accepted > {"permuted": 20, "letters": 0}[name]


def test_draft_memory_is_kept(load, tmp_path, monkeypatch):
    path = tmp_path / "memory"
    llm = load("llama", "recycling", draft_memory=path)
    llm.forget()
    cold = llm.stream(SHORT_PROMPT, max_new_tokens=80).finish()
    llm.save_draft_memory(path)
    assert cold.draft_memory == "cold"
    warm = LLM(llm.bundle, llm.options)
    for each in (llm, warm):
        each.forget()  # begins with the file's
        cheapen(each, monkeypatch)
        result = each.stream(SHORT_PROMPT, max_new_tokens=80).finish()
        assert result.draft_memory == "hot"
        assert result.rounds < cold.rounds
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match="not a draft memory"):
        LLM(llm.bundle, llm.options)


def test_skip_sets_that_do_not_fit_are_refused(load):
    llm = load("llama", "layer-skip")
    wrong = replace(llm.bundle.manifest, skip_sets=(SkipSet((40,)),))
    with pytest.raises(BundleError, match=r"skip_sets\[0\]: sublayers \[40\] of 4"):
        LLM(replace(llm.bundle, manifest=wrong), llm.options)
    none = replace(llm.bundle.manifest, skip_sets=())
    with pytest.raises(InputError, match="nothing that drafts by layer-skip"):
        LLM(replace(llm.bundle, manifest=none), llm.options)
