"""Tokens as events: what a decoder shows, joins, leaves out and counts."""

from __future__ import annotations

import pytest
from chats import FORMS, TOOLS, Answer, Chat, template

from edgespec.runtime.text.decoder import (
    CallEvent,
    ReasoningEvent,
    TextDecoder,
    TextEvent,
    join_events,
)
from edgespec.runtime.text.endings import Ending

SCRIPT = f"<think>\nRome.\n</think>\n\nIt is so. {FORMS['hermes'].call}"


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    source = template("hermes") + "{{ '</think>' if 0 }}"
    tokens = (*FORMS["hermes"].tokens, "<think>", "</think>")
    return Chat(tmp_path_factory.mktemp("decoder"), source, tokens)


def decoded(decoder, tokens):
    events = [event for token in tokens for event in decoder.push(token)]
    return [*events, *decoder.flush()]


def test_an_answer_comes_in_its_order(chat):
    decoder = TextDecoder(chat.tokenizer, parser=chat.ask(tools=TOOLS).parser)
    tokens = chat.tokenizer.encode(SCRIPT, add_special=False)
    reasoning, text, opening, arguments = join_events(decoded(decoder, tokens))
    assert (reasoning, text) == (ReasoningEvent("Rome."), TextEvent("It is so."))
    [call] = decoder.calls
    assert opening == CallEvent(0, "", call.id, "get_weather")
    assert arguments == CallEvent(0, call.text)
    assert (decoder.tokens, decoder.certain, decoder.cut_call) == (tokens, len(tokens), None)
    assert 0 < decoder.reasoning_tokens < len(tokens)


def test_no_event_is_empty(chat):
    for ending in (None, Ending(("none of it",), 2)):
        decoder = TextDecoder(chat.tokenizer, parser=chat.ask(tools=TOOLS).parser, ending=ending)
        for event in decoded(decoder, chat.tokenizer.encode(SCRIPT, add_special=False)):
            assert event.name or event.arguments if isinstance(event, CallEvent) else event.text


def test_without_a_parser_all_is_text(chat):
    decoder = TextDecoder(chat.tokenizer)
    events = decoded(decoder, chat.tokenizer.encode("It is so.", add_special=False))
    assert join_events(events) == [TextEvent("It is so.")]
    assert (decoder.calls, decoder.cut_call, decoder.reasoning_tokens) == ((), None, 0)


def test_tokens_that_end_a_text_are_not_shown(chat):
    tokens = chat.tokenizer.encode("It is", add_special=False)
    decoder = TextDecoder(chat.tokenizer, stop_ids=frozenset(tokens[-1:]))
    text = Answer.of(decoded(decoder, tokens)).text
    assert text == chat.tokenizer.decode(tokens[:-1])
    assert decoder.kept == (len(tokens), 0)


def test_what_goes_on_with_the_same_is_joined():
    opening = CallEvent(1, "", "id", "name")
    events = [*map(TextEvent, "ab"), *map(ReasoningEvent, "cd"), TextEvent("e")]
    events += [CallEvent(0, "{"), CallEvent(0, "}"), opening, CallEvent(1, "["), CallEvent(1, "]")]
    assert join_events(events) == [
        TextEvent("ab"),
        ReasoningEvent("cd"),
        TextEvent("e"),
        CallEvent(0, "{}"),
        opening,
        CallEvent(1, "[]"),
    ]
