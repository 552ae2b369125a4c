"""Tests of stop strings."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgespec.errors import InputError
from edgespec.runtime.text.endings import StopMatcher


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
    shown, found, pushed = "", False, ""
    for piece in pieces:
        part, found = matcher.push(piece)
        shown, pushed = shown + part, pushed + piece
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
