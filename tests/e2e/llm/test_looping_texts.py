"""`stop_loops` ends a text that repeats itself, at the same token with drafts and without."""

from __future__ import annotations

import pytest
from chats import FORMS, Answer, Chat, template
from repeating import make_repeating

from edgespec import LLM
from edgespec.runtime.text.decoder import TextDecoder
from edgespec.runtime.text.loops import LEAST_TOKENS, LoopMatcher

PROMPTS = ("hello", "and then?", "def f(")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_repeating(tmp_path_factory.mktemp("repeating"))


@pytest.fixture(scope="module")
def plain(path):
    with LLM(path, draft="none", threads=1) as llm:
        yield llm


@pytest.mark.parametrize("draft", ["none", "lookup", "recycling"])
def test_a_text_ends_at_the_same_token_with_whatever_drafts(path, plain, draft):
    with LLM(path, draft=draft, threads=1) as llm:
        for prompt in PROMPTS:
            whole = plain.generate(prompt, max_new_tokens=400)
            ended = llm.generate(prompt, max_new_tokens=400, stop_loops=True)
            matcher = LoopMatcher()
            count = [matcher.push(token) for token in whole.tokens].index(True) + 1
            assert (ended.finish_reason, ended.tokens) == ("loop", whole.tokens[:count])
            assert count < LEAST_TOKENS + 100
            assert ended.new_tokens == 1 + sum(len(made.tokens) for made in _rounds(llm, prompt))


def _rounds(llm, prompt):
    stream = llm.stream(prompt, max_new_tokens=400, stop_loops=True)
    stream.finish()
    return stream.rounds


def test_no_text_ends_so_unless_it_is_asked_for(plain):
    result = plain.generate("hello", max_new_tokens=400)
    assert (result.finish_reason, result.new_tokens) == ("length", 400)


def test_no_character_is_broken(tmp_path):
    chat = Chat(tmp_path, template("hermes"), FORMS["hermes"].tokens)
    decoder = TextDecoder(chat.tokenizer, chat.ask().tokens, loops=LoopMatcher())
    script = "\U0001f600" + "\U0001f602" * 300
    events = []
    for token in chat.tokenizer.encode(script, add_special=False):
        if not decoder.ended:
            events += decoder.push(token)
    shown = Answer.of([*events, *decoder.flush()]).text
    assert decoder.looped
    assert shown == "\U0001f600" + "\U0001f602" * (len(shown) - 1)
    assert 1 < len(shown) < 300
