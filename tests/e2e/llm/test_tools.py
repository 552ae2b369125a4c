"""Messages about tools, and what `LLM.chat` gives of an answer with them."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from chats import QUESTION, TOOLS, template
from pairs import with_eos
from servers import PLACE, make_bundle

from edgespec import LLM
from edgespec.errors import InputError
from edgespec.llm.messages import for_template
from edgespec.runtime.text.decoder import CallEvent
from edgespec.runtime.text.tools.history import about_tools


def test_messages_are_as_templates_want_them():
    call = {"id": "abc", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "abc", "content": "2"},
        {"role": "assistant", "content": "2", "tool_calls": []},
    ]
    first, second, third = for_template(messages)
    assert first["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert (first["content"], first["thinking"]) == ("", "Hm.")
    assert second == {**messages[1], "name": "f"}
    assert third == {"role": "assistant", "content": "2"}
    unnamed = [{**messages[0], "tool_calls": [{"function": call["function"]}]}]
    _, last = for_template([*unnamed, {"role": "tool", "content": "2"}])
    assert last == {"role": "tool", "content": "2", "name": "f"}
    plain = [{"role": "user", "content": "a"}]
    assert for_template(plain) == plain
    assert for_template("a") == plain
    assert about_tools([first])
    assert about_tools([second])
    for others in (plain, [third], "text", None, iter([second])):
        assert not about_tools(others)


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    path = with_eos(make_bundle(folder, template("hermes")), folder / "ending", 0)
    with LLM(path, draft="lookup", **PLACE) as llm:
        yield llm


def switch(on: bool, room: Literal["kitchen", "bath"]):
    """Switches a light."""


def test_a_chat_gives_calls(llm):
    options = {"tools": [switch], "tool_choice": "required", "parallel_tool_calls": False}
    for seed in range(3):
        result = llm.chat(QUESTION, seed=seed, temperature=1.0, **options)
        assert (result.text, result.finish_reason) == ("", "tool_calls")
        [call] = result.tool_calls
        assert call.name == "switch"
        assert set(call.arguments) == {"on", "room"}
        assert isinstance(call.arguments["on"], bool)
        assert result.sources["grammar"]  # forced tokens are drafted
        plain = llm.chat(QUESTION, seed=seed, temperature=1.0, draft_source="none", **options)
        assert plain.tokens == result.tokens
        assert plain.rounds > result.rounds


def test_a_call_that_is_cut_short_is_told_apart(llm):
    options = {"tools": [switch], "tool_choice": "switch", "seed": 1}
    begun = None
    for most in (48, 52):
        result = llm.chat(QUESTION, max_new_tokens=most, **options)
        assert (result.text, result.finish_reason, result.tool_calls) == ("", "length", ())
        assert result.cut_call.name == "switch"
        assert begun is None or result.cut_call.text.startswith(begun)
        begun = result.cut_call.text
    assert begun
    assert llm.chat(QUESTION, parallel_tool_calls=False, **options).cut_call is None


def test_an_answer_is_a_message_of_the_conversation_that_goes_on(llm):
    options = {"tool_choice": "required", "parallel_tool_calls": False, "seed": 1}
    result = llm.chat("hello", tools=[switch], **options)
    [call] = result.tool_calls
    function = {"name": "switch", "arguments": call.text}
    calls = [{"id": call.id, "type": "function", "function": function}]
    assert result.message == {"role": "assistant", "content": "", "tool_calls": calls}
    said = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    text = llm.tokenizer.decode(llm.chat_tokens([*QUESTION, result.message, said]))
    assert "CALL" in text
    assert text.endswith("done<assistant>")
    plain = llm.chat("hello", max_tokens=4)
    assert plain.tokens == llm.chat(QUESTION, max_tokens=4).tokens
    assert plain.message == {"role": "assistant", "content": plain.text}


def test_a_stream_and_a_session_give_calls_too(llm):
    options = {"tools": [switch], "tool_choice": "switch", "parallel_tool_calls": False, "seed": 1}
    stream = llm.chat_stream(QUESTION, **options)
    calls = [event for event in stream.events() if isinstance(event, CallEvent)]
    assert calls[0].name == "switch"
    arguments = "".join(call.arguments for call in calls)
    assert arguments == stream.result.tool_calls[0].text
    with llm.session() as session:
        again = session.chat(QUESTION, **options)
        streamed = session.chat_stream(QUESTION, **options)
        assert (list(streamed), streamed.result.tokens) == ([], again.tokens)
        assert streamed.result.reused > 0
    assert again.tool_calls[0].arguments == stream.result.tool_calls[0].arguments

    async def text():
        return "".join([piece async for piece in llm.chat_stream(QUESTION, **options)])

    assert asyncio.run(text()) == ""


def test_a_budget_of_reasoning_holds_with_and_without_drafts(tmp_path):
    source = "{{ messages[0].content }}{{ '</think>' if 0 }}<think>"
    path = with_eos(make_bundle(tmp_path, source), tmp_path / "ending", 0)
    with LLM(path, draft="lookup", **PLACE) as llm:
        options = {"temperature": 1.0, "seed": 3, "max_new_tokens": 60, "thinking_budget": 8}
        sources = llm.draft_sources
        plain, *others = [llm.chat(QUESTION, draft_source=each, **options) for each in sources]
        end = llm.tokenizer.encode("</think>", add_special=False)
        place = next(n for n in range(60) if plain.tokens[n : n + len(end)] == end)
        assert 8 <= place <= 12  # a character is completed first
        assert plain.reasoning == llm.tokenizer.decode(plain.tokens[:place]).strip()
        assert plain.text == llm.tokenizer.decode(plain.tokens[place + len(end) :]).lstrip()
        # White space at the end does not count, unless it completes a character.
        reads = (llm.tokenizer.decode(plain.tokens[:count]).strip() for count in range(place + 1))
        assert list(reads).index(plain.reasoning) <= plain.reasoning_tokens <= place
        assert others
        for other in others:
            assert other.tokens == plain.tokens
            assert other.reasoning_tokens == plain.reasoning_tokens
            assert other.rounds < plain.rounds


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tools": [switch, switch]}, "two tools have the name 'switch'"),
        ({"tools": [switch], "tool_choice": "lamp"}, "tool_choice is 'lamp', which is no tool"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"thinking_budget": -1}, "thinking_budget is -1"),
        ({"tools": TOOLS, "json_schema": "{"}, "json_schema"),
    ],
)
def test_options_that_contradict_each_other_are_refused(llm, options, reason):
    with pytest.raises(InputError, match=reason):
        llm.chat(QUESTION, **options)


def test_contents_may_be_parts_as_in_openais_api(llm):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    asked = [{"role": "user", "content": parts}]
    assert llm.chat_tokens(asked) == llm.chat_tokens(QUESTION)
    expected = llm.chat(QUESTION, max_new_tokens=4)
    assert llm.chat(asked, max_new_tokens=4).tokens == expected.tokens
    for part in ({"type": "input_audio"}, {"type": "text"}, "text", None):
        with pytest.raises(InputError, match="a content has the part"):
            llm.chat([{"role": "user", "content": [part]}])
