"""Texts that end with a line: one that is indented too little, or when time is up."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgespec.errors import InputError
from edgespec.runtime.text.endings import Ending, LineMatcher, StopMatcher


def pushed(matcher, pieces):
    """What is shown of pieces, and whether it has ended."""
    shown, ended = "", False
    for piece in pieces:
        part, ended = matcher.push(piece)
        shown += part
    return shown + matcher.flush(), ended


def by_lines(text, least):
    """The lines before the first one with a word that is indented too little, blank ones cut."""
    lines = text.split("\n")
    for number, line in enumerate(lines[1:], 1):
        words = line.lstrip(" \t")
        if words and len(line) - len(words) < least:
            kept = "\n".join(lines[:number])
            return re.sub(r"\n[ \t\n]*\Z", "", kept), True
    return text, False


@given(st.lists(st.text("a \t\n", max_size=6), max_size=12), st.integers(1, 4))
def test_a_text_ends_before_a_line_that_is_indented_too_little(pieces, least):
    assert pushed(LineMatcher(least, None), pieces) == by_lines("".join(pieces), least)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x)\n    y\n\n    z\nw", "x)\n    y\n\n    z"),
        ("x\r\n    y\r\nw", "x\r\n    y"),
        ("x\n\ty\n", "x"),
        ("x\n    y\n   ", "x\n    y\n   "),
    ],
)
def test_indented_lines(text, shown):
    assert pushed(LineMatcher(4, None), text)[0] == shown  # character by character
    assert pushed(LineMatcher(4, None), [text])[0] == shown


def test_no_line_is_looked_at_unless_that_is_asked_for():
    matcher = LineMatcher(0, None)
    assert matcher.push("a\n") == ("a\n", False)
    assert matcher.push("b") == ("b", False)
    assert matcher.flush() == ""


def test_when_time_is_up_the_line_is_finished():
    now = [0.0]
    matcher = LineMatcher(0, 2.0, lambda: now[0])
    now[0] = 5.0  # the first piece starts the clock
    assert matcher.push("a\nb") == ("a\nb", False)
    now[0] = 7.0
    assert matcher.push("c\nd") == ("c\nd", False)
    now[0] = 7.1
    assert matcher.push("e") == ("e", False)
    assert matcher.push("f\ng\n") == ("f", True)
    assert matcher.push("h") == ("", True)
    assert matcher.flush() == ""


def test_when_time_is_up_a_line_end_that_was_held_is_the_end():
    now = [0.0]
    matcher = LineMatcher(2, 1.0, lambda: now[0])
    assert matcher.push("a\n ") == ("a", False)
    now[0] = 1.5
    assert matcher.push("  b") == ("", True)


@pytest.mark.parametrize(
    ("text", "shown"), [("a\n  b\nc STOP", "a\n  b"), ("a\n  b STOP\nc", "a\n  b ")]
)
def test_the_first_of_both_ends_a_text(text, shown):
    assert pushed(Ending(("STOP",), 2), text) == (shown, True)
    assert pushed(Ending(("STOP",), 2), [text]) == (shown, True)


def test_what_both_hold_back_is_shown_at_the_end():
    assert pushed(Ending(("STOP",), 2), ["a\n  S", "TO"]) == ("a\n  STO", False)
    assert pushed(Ending((" STOP",), 2), ["a\n  "]) == ("a\n  ", False)


def brute_force(text, stops):
    """Character by character: the first end of a stop string; of several there, the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


short = st.text("abc", max_size=12)


@given(st.lists(short, max_size=8), st.lists(st.text("abc", min_size=1, max_size=4), max_size=4))
@example(["a", "bc"], ["abc", "b"])
@example(["ab", "ab", "ac"], ["abac"])
@example(["aa", "ab"], ["aab"])
@example(["xabc"], ["bc", "abc"])
def test_stops_are_found_across_pieces_as_in_the_whole_text(pieces, stops):
    matcher = StopMatcher(tuple(stops))
    shown = ""
    found = False
    pushed = ""
    for piece in pieces:
        part, found = matcher.push(piece)
        shown = shown + part
        pushed = pushed + piece
        # Nothing is shown that a stop could still take back, and nothing else is held.
        expected, stopped = brute_force(pushed, stops)
        assert found == stopped
        if stopped:
            assert shown == expected
        else:
            ends = [pushed[len(pushed) - n :] for n in range(len(pushed) + 1)]
            held = max(
                (end for end in ends if any(s != end and s.startswith(end) for s in stops)),
                key=len,
                default="",
            )
            assert shown == pushed[: len(pushed) - len(held)]
    shown += matcher.flush()
    assert (shown, found) == brute_force("".join(pieces), stops)


def test_an_empty_stop_is_refused():
    with pytest.raises(InputError, match="empty"):
        StopMatcher(("a", ""))


def test_no_character_of_a_stop_string_stands_for_a_token():
    end = Ending(["\ud800", "a<x>"], special={"<x>": 7})
    assert end.push(f"b{end.marks[7]}c") == ("bc", False)
    assert end.push(f"a{end.marks[7]}") == ("", True)
