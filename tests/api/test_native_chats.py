"""Conversations and texts at a cursor of native graphs: what an answer consists of."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from chats import QUESTION, template
from fillers import make_filler
from native_llms import with_library
from pairs import with_eos
from servers import make_bundle

from edgespec import bundle as bundles
from edgespec.api.llm import LLM
from edgespec.api.loading import LoadOptions
from edgespec.errors import InputError

pytestmark = with_library


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    path = with_eos(make_bundle(folder, template("hermes")), folder / "ending", 0)
    with LLM(bundles.load(path), LoadOptions(draft="lookup", threads=1)) as llm:
        yield llm


def switch(on: bool, room: Literal["kitchen", "bath"]):
    """Switches a light."""


CALLING = {"tools": [switch], "tool_choice": "required", "parallel_tool_calls": False}


def test_a_chat_gives_calls_with_and_without_drafts(llm):
    for seed in range(3):
        result, plain = (
            llm.chat(QUESTION, seed=seed, temperature=1.0, draft_source=source, **CALLING)
            for source in ("lookup", "none")
        )
        assert (result.text, result.finish_reason) == ("", "tool_calls")
        [call] = result.tool_calls
        assert (call.name, set(call.arguments)) == ("switch", {"on", "room"})
        assert plain.tokens == result.tokens


def test_a_call_that_is_cut_short_is_left_out(llm):
    result = llm.chat(QUESTION, tools=[switch], tool_choice="switch", max_new_tokens=30)
    assert (result.text, result.finish_reason, result.tool_calls) == ("", "length", ())


def test_a_stream_and_a_session_give_calls_too(llm):
    stream = llm.chat_stream(QUESTION, seed=1, **CALLING)
    calls = [call for piece in stream.pieces() for call in piece.calls]
    assert calls[0].name == "switch"
    arguments = "".join(call.arguments for call in calls)
    assert arguments == stream.result.tool_calls[0].text
    with llm.session() as session:
        again = session.chat(QUESTION, seed=1, **CALLING)
    assert again.tool_calls[0].arguments == stream.result.tool_calls[0].arguments
    assert again.reused == again.prompt_tokens - 1

    async def text():
        return "".join([piece async for piece in llm.chat_stream(QUESTION, seed=1, **CALLING)])

    assert asyncio.run(text()) == ""


def test_reasoning_keeps_to_its_budget(tmp_path):
    source = "{{ messages[0].content }}{{ '</think>' if 0 }}<think>"
    path = with_eos(make_bundle(tmp_path, source), tmp_path / "ending", 0)
    with LLM(bundles.load(path), LoadOptions(draft="lookup", threads=1)) as llm:
        options = {"temperature": 1.0, "seed": 3, "max_new_tokens": 60, "thinking_budget": 8}
        plain, drafted = (
            llm.chat(QUESTION, draft_source=each, **options) for each in ("none", "lookup")
        )
    assert plain.reasoning
    assert plain.text
    assert 0 < plain.reasoning_tokens <= 12  # a character is completed first
    assert (drafted.tokens, drafted.reasoning) == (plain.tokens, plain.reasoning)


def test_a_text_at_a_cursor(tmp_path):
    around = "def add(a, b):\n", "\n\nprint(add(2, 3))\n", [("a.py", "x = 1\n")]
    with LLM(bundles.load(make_filler(tmp_path)), LoadOptions(threads=1)) as llm:
        prompt = llm.infill_prompt(*around)
        how = {"max_new_tokens": 40, "temperature": 2.0, "seed": 1}
        expected = llm.generate(prompt.tokens, stop_token_ids=prompt.stop_ids, **how)
        found = llm.infill(*around, **how)
    assert found.tokens == expected.tokens
    assert found.prompt_tokens == len(prompt.tokens)


def test_a_model_without_a_form_for_cursors_says_so(llm):
    with pytest.raises(InputError, match="cannot fill in text"):
        llm.infill("x")
