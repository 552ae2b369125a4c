"""Texts that repeat themselves are noticed, and others are not taken for them."""

from __future__ import annotations

from base64 import b64encode
from itertools import chain
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.text.loops import (
    LEAST_REPEATS,
    LEAST_TOKENS,
    LONGEST_PERIOD,
    LoopMatcher,
)

PARTS = st.lists(st.integers(0, 3), min_size=1, max_size=LONGEST_PERIOD)


def noticed(tokens):
    """The number of tokens behind which a loop is noticed; None if none is."""
    matcher = LoopMatcher()
    return next((n for n, token in enumerate(tokens, 1) if matcher.push(token)), None)


def repeated_to(tokens, period):
    """The number of tokens at the end that have this period."""
    earlier = zip(reversed(tokens), reversed(tokens[:-period]), strict=False)
    same = 0
    for token, before in earlier:
        if token != before:
            break
        same += 1
    return same + period


@given(st.lists(st.integers(0, 3), max_size=300), PARTS)
def test_every_loop_is_noticed_and_none_before_it_is_certain(before, part):
    certain = max(LEAST_REPEATS * len(part), LEAST_TOKENS)
    tokens = [*before, *part * (certain // len(part) + 1)]
    found = noticed(tokens)
    assert found is not None
    assert found <= len(before) + certain
    # What was noticed is a loop, and one token earlier it was none.
    periods = range(1, LONGEST_PERIOD + 1)
    sure = [max(LEAST_REPEATS * period, LEAST_TOKENS) for period in periods]
    for end, expected in ((found, True), (found - 1, False)):
        shown = tokens[:end]
        runs = [repeated_to(shown, period) for period in periods if period < end]
        assert any(run >= least for run, least in zip(runs, sure, strict=False)) == expected


@given(PARTS, st.integers(0, 3))
def test_a_part_that_ends_otherwise_begins_anew(part, other):
    matcher = LoopMatcher()
    almost = max(LEAST_REPEATS * len(part), LEAST_TOKENS) - 1
    tokens = (part * (almost // len(part) + 1))[:almost]
    found = [matcher.push(token) for token in tokens]
    if len(set(part)) == len(part):  # it has no shorter period
        assert not any(found)
    assert not matcher.push(other + 9)
    assert not any(matcher.push(token) for token in tokens[: LEAST_TOKENS - 1])


ROWS = [f"| {n} | item {n * 7 % 31} | {n * n} | yes |\n" for n in range(300)]
HARMLESS = {
    "a table": "".join(ROWS),
    "an empty table": "| | | |\n" * 20,
    "numbers": "".join(f"{n}\n" for n in range(2000)),
    "a list": "".join(f"{n}. Buy milk, bread and eggs.\n" for n in range(200)),
    "code": "".join(f"    self.field_{n} = field_{n}\n" for n in range(200)),
    "closing brackets": "".join(" " * 4 * n + "}\n" for n in range(12, 0, -1)),
    "a ruler": f"Title\n{'-' * 80}\n\n{'=' * 80}\nText\n{'*' * 80}\n",
    "a box": f"+{'-' * 30}+\n" + f"|{' ' * 30}|\n" * 5 + f"+{'-' * 30}+\n",
    "a tree": "".join("*" * (2 * n + 1) + "\n" for n in range(40)),
    "a chorus": "We will, we will rock you!\n" * 4,
    "indented code": "def f():\n" + f"{' ' * 64}pass\n" * 2,
    "base 64": b64encode(Random(0).randbytes(4000) + bytes(100)).decode(),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_alike_is_none(name):
    """Even with a token for each character, of which there are more than a vocabulary makes."""
    assert noticed(map(ord, HARMLESS[name])) is None


def test_every_prefix_of_numbers_in_words_is_none():
    assert noticed(chain.from_iterable((n, -1, -2) for n in range(5000))) is None
