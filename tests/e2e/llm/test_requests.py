"""Requests: what `generate`, `chat` and the others submit."""

from __future__ import annotations

import pytest
from chats import QUESTION
from native_llms import with_library
from pairs import SHORT_PROMPT
from servers import PLACE, make_bundle

from edgespec import LLM, ChatOptions, GenerationOptions
from edgespec.errors import InputError
from edgespec.llm.request import GenerationRequest

pytestmark = with_library

TEMPLATE = "{% for each in messages %}{{ each.content }}{% endfor %}"


def test_a_prompt_is_continued(natives):
    llm = natives("llama")
    options = GenerationOptions(max_new_tokens=8, temperature=1.0, seed=3)
    expected = llm.generate(SHORT_PROMPT, max_tokens=8, temperature=1.0, seed=3)
    request = GenerationRequest(SHORT_PROMPT, options)
    stream = llm.submit(request)
    assert stream.finish().tokens == expected.tokens
    assert stream.again(3).finish().tokens == expected.tokens
    with llm.session() as session:
        assert session.submit(request).finish().tokens == expected.tokens
        assert len(session.tokens) == expected.prompt_tokens + 7


def test_a_conversation_is_answered(tmp_path):
    with LLM(make_bundle(tmp_path, TEMPLATE), **PLACE) as llm:
        expected = llm.chat(QUESTION, max_new_tokens=4)
        found = llm.submit(GenerationRequest(QUESTION, ChatOptions(max_new_tokens=4))).finish()
        assert found.tokens == expected.tokens


@pytest.mark.parametrize("draft", ["none", "lookup"])
def test_a_prediction_holds_for_other_seeds_too(natives, draft):
    llm = natives("llama", "auto")
    expected = llm.generate(SHORT_PROMPT, max_new_tokens=12)
    options = GenerationOptions(
        max_new_tokens=12, draft_source=draft, prediction=expected.text, temperature=1.0, seed=1
    )
    first = llm.submit(GenerationRequest(SHORT_PROMPT, options))
    second = first.again(2)
    facts = [each.finish().accepted_prediction_tokens for each in (first, second)]
    assert all((each is None) == (draft == "none") for each in facts)


def test_what_the_model_does_not_have_is_refused_as_it_is_submitted(natives):
    llm = natives("llama", "none")
    for wrong, why in (
        ({"draft_source": "lookup"}, "draft_source is 'lookup'"),
        ({"logit_bias": {100_000: 1.0}}, "logit_bias names token 100000"),
    ):
        request = GenerationRequest(SHORT_PROMPT, GenerationOptions(**wrong))
        with pytest.raises(InputError, match=why):
            llm.submit(request)
    with pytest.raises(InputError, match="the prompt is empty"):
        llm.submit(GenerationRequest("", GenerationOptions()))
