"""DRY, against a search through all parts of a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import InputError
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.repetitions import Repetitions

BREAKERS = [{}, {4: [()]}, {4: [(3,), (3, 3)], 0: [()]}, {3: [(1, 2)], 1: [(), (2,)]}]
texts = st.lists(st.integers(0, 4), max_size=40)


def by_definition(tokens, options, breakers):
    """What each token loses: the longest end of the text that came before it already."""
    last = options.dry_penalty_last_n
    window = tokens if last == -1 else tokens[len(tokens) - min(last, len(tokens)) :]
    limit = len(window)
    for start in reversed(range(len(window))):
        ends = [
            start + 1 + len(tail)
            for tail in breakers.get(window[start], ())
            if window[start + 1 : start + 1 + len(tail)] == list(tail)
        ]
        if ends:
            limit = len(window) - max(ends)
            break
    found = {}
    for place in range(1, len(window)):
        length = 0
        while length < place and window[place - 1 - length] == window[-1 - length]:
            length += 1
        found[window[place]] = max(found.get(window[place], 0), min(length, limit))
    allowed = options.dry_allowed_length
    return {
        token: options.dry_multiplier * options.dry_base ** (length - allowed)
        for token, length in found.items()
        if length >= allowed and () not in breakers.get(token, ())
    }


@given(
    prompt=texts,
    text=texts,
    branches=st.lists(st.lists(st.integers(0, 4), max_size=5), max_size=3),
    breakers=st.sampled_from(BREAKERS),
    last=st.sampled_from([-1, 1, 3, 10]),
    allowed=st.integers(1, 4),
)
def test_what_tokens_lose_is_what_the_definition_says(
    prompt, text, branches, breakers, last, allowed
):
    options = SamplingOptions(
        dry_multiplier=0.8, dry_base=1.5, dry_penalty_last_n=last, dry_allowed_length=allowed
    )
    made = Repetitions(options, breakers, prompt)
    for token in text:
        made.append(token)
    for branch in [*branches, []]:
        before = made.lengths
        for token in branch:
            made.append(token)
        expected = by_definition([*prompt, *text, *branch], options, breakers)
        assert made.penalties() == pytest.approx(expected)
        made.lengths = before


def test_the_example_of_llama_cpp():
    """After `a b c c b c y a b c` another c goes on with three tokens, y with two, b with one."""
    a, b, c, y = range(4)
    options = SamplingOptions(dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=1)
    made = Repetitions(options, {}, [a, b, c, c, b, c, y, a, b, c])
    assert made.penalties() == {c: 4.0, y: 2.0, b: 1.0}


def test_penalties_stay_finite():
    for base in (1.0, 1.75, 100.0):
        options = SamplingOptions(dry_multiplier=100.0, dry_base=base)
        [lost] = Repetitions(options, {}, [7] * 5000).penalties().values()
        assert lost <= 1e30


@pytest.mark.parametrize("wrong", [[""], 3, [1]])
def test_breakers_are_texts(wrong):
    with pytest.raises(InputError, match="dry_sequence_breakers"):
        SamplingOptions(dry_sequence_breakers=wrong)


def test_a_single_breaker_is_taken_as_one():
    assert SamplingOptions(dry_sequence_breakers="\n\n").dry_sequence_breakers == ("\n\n",)
    assert SamplingOptions(dry_sequence_breakers=[]).dry_sequence_breakers == ()
