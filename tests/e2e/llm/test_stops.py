"""What ends a text is looked for in the answer alone, whatever stands before it or in calls."""

from __future__ import annotations

import pytest
from chats import FORMS, TOOLS, Chat, template
from hypothesis import given
from hypothesis import strategies as st

from edgespec.llm.generation import AnswerText
from edgespec.runtime.text.streaming import Piece, TextEnd

TAGS = ("<think>", "</think>")
CALL = FORMS["hermes"].call
THOUGHT = "<think>\nRome, say.\n</think>\n\n"


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    source = template("hermes") + "{{ '</think>' if 0 }}"
    return Chat(tmp_path_factory.mktemp("stops"), source, (*FORMS["hermes"].tokens, *TAGS))


def written(chat, script, size=1, **ends):
    """What a script gives, pushed by some tokens at a time, and the characters of its tokens."""
    asked = chat.ask(tools=TOOLS)
    tokenizer = chat.tokenizer
    hidden = tokenizer.special_ids - asked.shown.keys()
    special = {token: id_ for token, id_ in tokenizer.added_tokens.items() if id_ in hidden}
    text = AnswerText(asked, tokenizer, TextEnd(special=special, **ends), frozenset([0]))
    tokens = tokenizer.encode(script, add_special=False)
    for place in range(0, len(tokens), size):
        if not text.stopped:
            text.push(tokens[place : place + size])
    text.flush()
    kept, beyond = text.kept
    shown = tokenizer.decode(text.tokens[:kept], skip_special=False)
    return sum(text.pieces, Piece()), text, shown[: len(shown) - beyond]


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("stop", ["Rome", "\n", "say.\n</th", "k>", "<think>"])
def test_reasoning_and_its_marks_are_whole(chat, stop, size):
    piece, text, shown = written(chat, f"{THOUGHT}It is {stop} and more", size, stop=[stop])
    assert (piece.reasoning, piece.text, text.stopped) == ("Rome, say.", "It is ", True)
    assert shown == f"{THOUGHT}It is "


@pytest.mark.parametrize("stop", ["\n", "Rome", '"name"', "</tool_call>", "<tool_call>", "}", "ci"])
@pytest.mark.parametrize("before", ["", "Well. ", THOUGHT])
def test_calls_and_their_arguments_are_whole(chat, stop, before):
    for script, count in ((CALL, 1), (FORMS["hermes"].calls, 2)):
        piece, text, shown = written(chat, before + script, 3, stop=[stop])
        assert not text.stopped
        assert [call.name for call in text.tool_calls] == ["get_weather", "clock"][:count]
        assert text.tool_calls[0].arguments == {"city": "Rome", "days": 2}
        assert piece.text == before.replace(THOUGHT, "").rstrip()
        assert shown == before + script


def test_text_before_a_call_ends(chat):
    piece, text, shown = written(chat, f"Well, {CALL}", stop=[","])
    assert (piece.text, piece.calls, text.stopped, shown) == ("Well", (), True, "Well")


def test_a_line_that_ends_a_text_is_one_of_the_answer(chat):
    script = "<think>\na\nb\n</think>\n\n  if x:\n    y\nz"
    piece, text, _ = written(chat, script, min_indent=2)
    assert (piece.reasoning, piece.text, text.stopped) == ("a\nb", "if x:\n    y", True)


def test_a_special_token_in_reasoning_is_no_part_of_it(chat):
    script = "<think>\nA<|endoftext|>B</think>C<|endoftext|>D"
    piece, text, _ = written(chat, script, stop=["<|endoftext|>"])
    assert (piece.reasoning, piece.text, text.stopped) == ("AB", "C", True)


@given(st.text("ab \n", max_size=9), st.text("ab \n", min_size=1, max_size=3), st.integers(1, 5))
def test_the_answer_ends_as_a_text_of_its_own(chat, said, stop, size):
    """Where white space before what follows is no part of it."""
    piece, text, shown = written(chat, f"{THOUGHT}a{said}", size, stop=[stop])
    expected, found, _ = f"a{said}".partition(stop)
    assert (piece.text, text.stopped) == (expected, bool(found))
    assert shown == THOUGHT + expected
    assert piece.reasoning == "Rome, say."


def test_pieces_are_certain_as_they_come(chat):
    asked = chat.ask(tools=TOOLS)
    tokens = chat.tokenizer.encode(f"{THOUGHT}It is Rome.", add_special=False)
    text = AnswerText(asked, chat.tokenizer, TextEnd(("Rome",)), frozenset([0]))
    told = 0
    for token in tokens:
        if text.stopped:
            break
        text.push([token])
        assert told <= text.certain <= len(text.tokens)
        told = text.certain
    text.flush()
    assert chat.tokenizer.decode(text.tokens[:told], skip_special=False) in f"{THOUGHT}It is "
