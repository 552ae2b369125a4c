"""Pieces of grammars: marks that are tokens or spelled, and members in their order."""

from __future__ import annotations

import pytest
from grammars import Grammars

from edgespec.runtime.text.lark import Spelling, chain_rules, escape, optional_prefix, quote

MARK = "<|end|>"


def test_tokens_stand_for_the_marks_that_nothing_spells():
    spelling = Spelling({MARK: 7, "<|end|>>": 8})
    assert spelling.parts(f"a{MARK}b<|end|>>") == ["a", MARK, "b", "<|end|>>"]
    assert spelling.marks(f"a{MARK}\n") == '"a" <[7]> "\\n"'
    assert spelling.lines(f"a\n{MARK}b") == ['"a"', '"\\n"', "<[7]>", '"b"']
    assert spelling.begins_with_token(f"{MARK}a")
    assert not spelling.begins_with_token(f"a{MARK}")
    assert Spelling({}).parts(f"a{MARK}") == [f"a{MARK}"]
    assert Spelling({}).parts("") == []


@pytest.fixture(scope="module")
def grammars(tmp_path_factory):
    return Grammars(tmp_path_factory.mktemp("tokenizer"), [MARK])


def taken(grammars, lines, *texts):
    matcher = grammars.compiler.compile_answer("\n".join(lines))
    return [text for text in texts if grammars.takes(matcher, text)]


@pytest.mark.parametrize("mark", [f"{MARK}!", "</end>"])
def test_a_text_ends_with_the_first_of_its_mark(grammars, mark):
    lines = ["start: said", *Spelling(grammars.special).ended("said", mark)]
    texts = (f"a\nb{mark}", mark, "a", f"a{mark}b")
    assert taken(grammars, lines, *texts) == list(texts[:2])


def test_as_many_parts_as_come(grammars):
    lines = [f'start: "a"{optional_prefix([quote("b"), quote("c")])}']
    assert taken(grammars, lines, "a", "ab", "abc", "ac") == ["a", "ab", "abc"]


def test_members_come_in_their_order_and_some_may_be_left_out(grammars):
    members = [('"a"', False), ('"b"', True), ('"c"', False)]
    first, rules = chain_rules("member", members, '","')
    texts = ("b", "a,b", "b,c", "a,b,c", "a,c", "a", "", "b,a", "a,b,", ",b")
    assert taken(grammars, [f"start: {first}", *rules], *texts) == list(texts[:4])


@pytest.mark.parametrize("text", ["a.b*c", "[x](y){z}", "/", "\\", "a\nb", "é|<'\">", "^$?+"])
def test_any_text_can_be_quoted_and_escaped(grammars, text):
    for literal in (quote(text), f"/{escape(text)}/"):
        assert taken(grammars, [f"start: {literal}"], text, f"{text}x") == [text]
