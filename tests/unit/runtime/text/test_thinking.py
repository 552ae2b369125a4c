"""Reasoning before an answer: taken from it, held apart from its form, and limited."""

from __future__ import annotations

import pytest
from chats import FORMS, TOOLS, WEATHER, Answer, Chat, template

from edgespec.runtime.text.answers import AnswerParser
from edgespec.runtime.text.thinking import thinking_form

ROME = ("get_weather", {"city": "Rome", "days": 2})
SOURCE = "{{ messages[0].content }}{{ '</think>' if 0 }}{% if prompted %}<think>\n{% endif %}"
ENDED = "{{ messages[0].content }}<think>\n\n</think>\n\n"
TAGS = ("<think>", "</think>")


@pytest.mark.parametrize("tokens", [TAGS, ()], ids=["tokens", "spelled"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_reasoning_is_taken_from_the_answer(tmp_path, size, tokens):
    chat = Chat(tmp_path, SOURCE, tokens)
    read = chat.read("<think>\nTwo, or\n three.\n</think>\n\nTwo <3", size)
    assert read == (Answer("Two <3", "Two, or\n three."), [])
    prompted = {"template_options": {"prompted": True}}
    assert chat.read("Hm.</think>Two", size, **prompted)[0] == Answer("Two", "Hm.")
    assert chat.read("\n Hm. </thin", size, **prompted)[0] == Answer("", "Hm. </thin")
    assert chat.read(" Two <thin", size)[0] == Answer(" Two <thin")


def test_reasoning_that_the_prompt_has_ended_is_none(tmp_path):
    asked = Chat(tmp_path, ENDED, TAGS).ask()
    assert asked.parser is None


def test_a_schema_holds_behind_reasoning(tmp_path):
    chat = Chat(tmp_path, SOURCE, TAGS)
    form = {"json_schema": {"type": "integer"}}
    for text in ("12", "<think>\nHm <b>.\n</think>\n\n12"):
        assert chat.accepted(text, **form) == (text, True)
    assert chat.accepted("<think>\nHm\n</think>\n\nx", **form)[0].endswith("</think>\n\n")
    begun = {"template_options": {"prompted": True}}
    assert chat.accepted("Hm</think>12", **form, **begun) == ("Hm</think>12", True)
    assert not chat.accepted("12", **form, **begun)[1]


def test_calls_come_behind_reasoning(tmp_path):
    source = template("hermes") + "{{ '</think>' if 0 }}"
    chat = Chat(tmp_path, source, (*FORMS["hermes"].tokens, *TAGS))
    text = f"<think>\nRome.\n</think>\n\n{FORMS['hermes'].call}"
    for choice in ("auto", "required"):
        assert chat.accepted(text, tools=TOOLS, tool_choice=choice) == (text, True)
    piece, calls = chat.read(text, 5, tools=TOOLS)
    assert (piece.text, piece.reasoning, calls) == ("", "Rome.", [ROME])


def test_harmony_has_channels():
    parser = AnswerParser(thinking_form("<|channel|>analysis"), None)
    text = (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>Wait.<|end|><|start|>assistant<|channel|>final<|message|>Two."
    )
    assert Answer.of([*parser.push(text), *parser.finish()]) == Answer("Wait.Two.", "One.")


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_ends_reasoning(tmp_path, budget, inside):
    chat = Chat(tmp_path, SOURCE, TAGS)
    asked = chat.ask(thinking_budget=budget, template_options={"prompted": inside})
    grammar = asked.grammar
    tokenizer = chat.tokenizer
    end = tokenizer.encode("</think>", add_special=False)
    thoughts = tokenizer.encode("abcdefgh", add_special=False)
    if not inside:
        begin = tokenizer.encode("<think>", add_special=False)
        assert grammar.valid([*begin, *thoughts]) == 1 + budget
        grammar.advance(begin[0])
    for token in thoughts[:budget]:
        assert grammar.allowed() is None
        assert grammar.forced() == []
        grammar.advance(token)
    assert grammar.forced() == end
    assert grammar.allowed().nonzero()[0].tolist() == end
    assert grammar.valid([*end, *thoughts, *thoughts]) == 1 + 2 * len(thoughts)
    grammar.advance(end[0])
    assert grammar.allowed() is None


def test_a_budget_waits_for_a_whole_character(tmp_path):
    chat = Chat(tmp_path, SOURCE, TAGS)
    grammar = chat.ask(thinking_budget=1, template_options={"prompted": True}).grammar
    first, *rest = chat.tokenizer.encode("é", add_special=False)
    assert rest
    grammar.advance(first)
    assert grammar.forced() == []
    for token in rest:
        grammar.advance(token)
    assert chat.tokenizer.decode(grammar.forced(), skip_special=False) == "</think>"


def test_an_answer_without_reasoning_has_no_budget(tmp_path):
    chat = Chat(tmp_path, SOURCE, TAGS)
    grammar = chat.ask(thinking_budget=0).grammar
    tokens = chat.tokenizer.encode("plain text of no thought at all </think>", add_special=False)
    assert grammar.valid(tokens) == len(tokens)
    asked = Chat(tmp_path, template("hermes")).ask(thinking_budget=0)
    assert asked.grammar is None


def test_a_budget_holds_together_with_tools(tmp_path):
    source = template("hermes") + "{{ '</think>' if 0 }}"
    chat = Chat(tmp_path, source, (*FORMS["hermes"].tokens, *TAGS))
    options = {"tools": [WEATHER], "tool_choice": "required", "thinking_budget": 2}
    asked = chat.ask(**options)
    for token in chat.tokenizer.encode("<think>ab", add_special=False):
        asked.grammar.advance(token)
    end = chat.tokenizer.encode("</think>", add_special=False)
    assert asked.grammar.forced() == end
    asked.grammar.advance(end[0])
    assert asked.grammar.allowed() is not None
