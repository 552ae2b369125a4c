"""Texts of native graphs drafted by a head: never changed by it, and often as it says."""

from __future__ import annotations

import pytest
from engines import Given
from nodes import MISSING
from pairs import LONG_PROMPT, NEW_TOKENS, SHORT_PROMPT

from edgespec import bundle as bundles
from edgespec.api.llm import LLM, is_native
from edgespec.api.loading import LoadOptions
from edgespec.errors import InputError
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.runtime.speculation.generation import Limits, Request

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

HOW = ({}, {"temperature": 0.8, "top_p": 0.95, "seed": 4}, {"repetition_penalty": 1.3})


@pytest.fixture(scope="module", params=["head", "mtp"])
def name(request, pairs):
    """A pair with a head that has learned from the long prompt."""
    assert is_native(bundles.load(pairs.pair(request.param).path), LoadOptions())
    return request.param


@pytest.fixture(scope="module")
def llm(name, pairs):
    """The pair, with costs that are given instead of measured."""
    asked = LoadOptions(draft="auto", threads=1, context=512)
    loaded = LLM(bundles.load(pairs.pair(name).path), asked)
    loaded.engine._cost = Given(1.0, 0.05)
    [drafter] = [each for each in loaded.engine._drafters if each.name == "head"]
    drafter._cost = Given(0.02, 0.01)
    return loaded


@pytest.mark.parametrize("how", HOW, ids=str)
def test_the_head_never_changes_a_text(llm, pairs, how):
    for prompt in (LONG_PROMPT, SHORT_PROMPT):
        plain = llm.stream(prompt, max_new_tokens=64, draft_source="none", **how).finish().tokens
        assert len(plain) == 64
        for source, nodes, width in (("head", 3, 1), ("head", 16, 4), ("auto", 7, 4)):
            options = {"num_assistant_tokens": nodes, "tree_width": width, **how}
            stream = llm.stream(prompt, max_new_tokens=64, draft_source=source, **options)
            assert stream.finish().tokens == plain
    llm.forget()
    assert llm.engine.target.pool.used == llm.models["draft"].pool.used == 0


def test_the_head_is_as_often_right_as_on_other_engines(llm, pairs, name):
    expected = pairs.greedy(name)
    llm.forget()
    for width in (1, 3):
        options = {"max_new_tokens": NEW_TOKENS, "num_assistant_tokens": 6, "tree_width": width}
        result = llm.stream(LONG_PROMPT, draft_source="head", **options).finish()
        assert result.tokens == expected
        assert result.mean_accepted_length > 2.5
        assert result.sources.keys() <= {"head", "none"}
        assert (result.engine, result.draft_engine) == ("cpu:native", "cpu:native")


def test_sequences_at_once_are_those_of_each_alone(llm):
    prompts = [llm.tokenizer.encode(text) for text in (LONG_PROMPT, SHORT_PROMPT, "x = 1\n")]

    def request(number):
        sampler = Sampler(
            SamplingOptions(temperature=number % 2, seed=number), llm.tokenizer.vocab_size
        )
        return Request(prompts[number], sampler, Limits(40, llm.context_length), "head")

    made = [llm.engine.add(request(number)) for number in range(3)]
    while llm.engine.running:
        llm.engine.step()
    for number, generation in enumerate(made):
        alone = [token for each in llm.engine.generate(request(number)) for token in each.tokens]
        assert generation.tokens[len(prompts[number]) :] == alone


def test_a_head_is_loaded_where_it_is_asked_for(pairs):
    opened = bundles.load(pairs.pair("head").path)
    cheap = "lookup", "recycling"
    for draft, sources in (("head", ("none", "head", *cheap)), ("lookup", ("none", *cheap))):
        assert is_native(opened, LoadOptions(draft=draft))
        assert LLM(opened, LoadOptions(draft=draft)).draft_sources == sources
    with pytest.raises(InputError, match="nothing that drafts by model: use another"):
        LLM(opened, LoadOptions(draft="model"))
    with pytest.raises(InputError, match="nothing that drafts by head: use another"):
        LLM(bundles.load(pairs.pair("llama").path), LoadOptions(draft="head"))
