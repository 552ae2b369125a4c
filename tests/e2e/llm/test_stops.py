"""What ends a text is looked for in the answer alone, whatever stands before it or in calls."""

from __future__ import annotations

import pytest
from chats import FORMS, TOOLS, Answer, Chat, template
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.text.decoder import TextDecoder
from edgespec.runtime.text.endings import Ending

TAGS = ("<think>", "</think>")
CALL = FORMS["hermes"].call
THOUGHT = "<think>\nRome, say.\n</think>\n\n"


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    source = template("hermes") + "{{ '</think>' if 0 }}"
    return Chat(tmp_path_factory.mktemp("stops"), source, (*FORMS["hermes"].tokens, *TAGS))


def written(chat, script, **ends):
    """What a script gives, token by token, its decoder, and the characters of its tokens."""
    asked = chat.ask(tools=TOOLS)
    tokenizer = chat.tokenizer
    hidden = tokenizer.special_ids - asked.parser.marks.keys()
    special = {token: id_ for token, id_ in tokenizer.added_tokens.items() if id_ in hidden}
    ending = Ending(special=special, **ends)
    decoder = TextDecoder(tokenizer, asked.tokens, asked.parser, ending, frozenset([0]))
    events = []
    for token in tokenizer.encode(script, add_special=False):
        if not decoder.stopped:
            events += decoder.push(token)
    events += decoder.flush()
    kept, beyond = decoder.kept
    shown = tokenizer.decode(decoder.tokens[:kept], skip_special=False)
    return Answer.of(events), decoder, shown[: len(shown) - beyond]


@pytest.mark.parametrize("stop", ["Rome", "\n", "say.\n</th", "k>", "<think>"])
def test_reasoning_and_its_marks_are_whole(chat, stop):
    answer, decoder, shown = written(chat, f"{THOUGHT}It is {stop} and more", stop=[stop])
    assert (answer.reasoning, answer.text, decoder.stopped) == ("Rome, say.", "It is ", True)
    assert shown == f"{THOUGHT}It is "


@pytest.mark.parametrize("stop", ["\n", "Rome", '"name"', "</tool_call>", "<tool_call>", "}", "ci"])
@pytest.mark.parametrize("before", ["", "Well. ", THOUGHT])
def test_calls_and_their_arguments_are_whole(chat, stop, before):
    for script, count in ((CALL, 1), (FORMS["hermes"].calls, 2)):
        answer, decoder, shown = written(chat, before + script, stop=[stop])
        assert not decoder.stopped
        assert [call.name for call in decoder.calls] == ["get_weather", "clock"][:count]
        assert decoder.calls[0].arguments == {"city": "Rome", "days": 2}
        assert answer.text == before.replace(THOUGHT, "").rstrip()
        assert shown == before + script


def test_text_before_a_call_ends(chat):
    answer, decoder, shown = written(chat, f"Well, {CALL}", stop=[","])
    assert (answer.text, answer.calls, decoder.stopped, shown) == ("Well", (), True, "Well")


def test_a_line_that_ends_a_text_is_one_of_the_answer(chat):
    script = "<think>\na\nb\n</think>\n\n  if x:\n    y\nz"
    answer, decoder, _ = written(chat, script, min_indent=2)
    assert (answer.reasoning, answer.text, decoder.stopped) == ("a\nb", "if x:\n    y", True)


def test_a_special_token_in_reasoning_is_no_part_of_it(chat):
    script = "<think>\nA<|endoftext|>B</think>C<|endoftext|>D"
    answer, decoder, _ = written(chat, script, stop=["<|endoftext|>"])
    assert (answer.reasoning, answer.text, decoder.stopped) == ("AB", "C", True)


@given(st.text("ab \n", max_size=9), st.text("ab \n", min_size=1, max_size=3))
def test_the_answer_ends_as_a_text_of_its_own(chat, said, stop):
    """Where white space before what follows is no part of it."""
    answer, decoder, shown = written(chat, f"{THOUGHT}a{said}", stop=[stop])
    expected, found, _ = f"a{said}".partition(stop)
    assert (answer.text, decoder.stopped) == (expected, bool(found))
    assert shown == THOUGHT + expected
    assert answer.reasoning == "Rome, say."


def test_pieces_are_certain_as_they_come(chat):
    asked = chat.ask(tools=TOOLS)
    tokens = chat.tokenizer.encode(f"{THOUGHT}It is Rome.", add_special=False)
    ending = Ending(("Rome",))
    decoder = TextDecoder(chat.tokenizer, asked.tokens, asked.parser, ending, frozenset([0]))
    told = 0
    for token in tokens:
        if decoder.stopped:
            break
        decoder.push(token)
        assert told <= decoder.certain <= len(decoder.tokens)
        told = decoder.certain
    decoder.flush()
    assert chat.tokenizer.decode(decoder.tokens[:told], skip_special=False) in f"{THOUGHT}It is "
