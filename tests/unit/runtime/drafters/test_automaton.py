"""Tests of the suffix automaton against brute force."""

from __future__ import annotations

import itertools
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.drafters.lookup import SuffixAutomaton

ALWAYS_LATEST = 18  # tokens; a longer text may hold 16 suffixes that each ended elsewhere too

texts = st.integers(2, 4).flatmap(
    lambda letters: st.lists(st.integers(0, letters - 1), max_size=40)
)
# Whole phrases come again, with runs among them.
repetitive = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 25)), max_size=6
).map(lambda phrases: [token for phrase, times in phrases for token in phrase * times])


def automaton_of(text):
    automaton = SuffixAutomaton()
    automaton.extend(text)
    return automaton


def best_match(text):
    """Length of the longest suffix that ends earlier too, and its most recent earlier end."""
    for length in range(len(text) - 1, 0, -1):
        suffix = text[len(text) - length :]
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == suffix:
                return length, end
    return 0, 0


def follow(text, end, count):
    """What followed `end`, position by position, predictions included."""
    text = list(text)
    start = len(text)
    for place in range(end, end + count):
        text.append(text[place])
    return text[start:]


def check_every_prefix(text, latest):
    automaton = SuffixAutomaton()
    for size, token in enumerate(text, start=1):
        automaton.extend([token])
        length, end = best_match(text[:size])
        assert automaton.match_length == length
        if latest:
            assert automaton.match_end == end
        elif length:
            found = automaton.match_end
            assert found <= end < size
            assert text[found - length : found] == text[size - length : size]
        assert automaton.expected == (text[automaton.match_end] if length else None)


@given(texts)
def test_the_longest_match_at_every_length_of_the_text(text):
    check_every_prefix(text, latest=False)


@given(repetitive)
def test_a_match_ends_at_an_earlier_occurrence_whatever_repeats(text):
    automaton = SuffixAutomaton()
    longest = 0
    for size, token in enumerate(text, start=1):
        automaton.extend([token])
        length = automaton.match_length
        end = automaton.match_end
        assert length <= longest + 1  # what the match without its last token was, or less
        longest = length
        assert end < size
        assert text[end - length : end] == text[size - length : size]


@given(st.lists(st.integers(0, 2), max_size=ALWAYS_LATEST))
def test_the_match_is_the_most_recent_one_in_short_texts(text):
    check_every_prefix(text, latest=True)


def test_the_match_is_the_most_recent_one_in_a_long_text_without_runs():
    words = random.Random(1)
    lines = [[words.randrange(9) for _ in range(8)] for _ in range(12)]
    check_every_prefix([t for _ in range(40) for t in words.choice(lines)], latest=True)


@given(repetitive, st.sampled_from([1, 2, 16]))
def test_a_match_that_goes_on_never_moves_back(text, refreshed):
    """A continued match is never replaced by an older one."""
    automaton = SuffixAutomaton()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgespec.runtime.drafters.lookup._REFRESHED", refreshed)
        for token in text:
            before = automaton.match_end
            expected = automaton.expected
            automaton.extend([token])
            if token == expected:
                assert automaton.match_end > before


@given(texts, st.lists(st.integers(1, 7)))
def test_pieces_and_iterators_make_the_same_automaton(text, sizes):
    pieces = SuffixAutomaton()
    rest = iter(text)
    for size in sizes:
        pieces.extend(itertools.islice(rest, size))
    pieces.extend(rest)
    whole = automaton_of(text)
    assert (pieces.match_length, pieces.match_end) == (whole.match_length, whole.match_end)
    assert len(pieces) == len(text)
    assert pieces.continuation(50) == whole.continuation(50)


# What followed


@given(repetitive, st.integers(0, 60))
def test_the_continuation_goes_on_from_its_own_predictions(text, count):
    automaton = automaton_of(text)
    continuation = automaton.continuation(count)
    if automaton.match_length:
        assert continuation == follow(text, automaton.match_end, count)
        assert automaton.continuation(1) == [automaton.expected]
    else:
        assert continuation == []


def test_what_follows_leaves_the_automaton_as_it_was():
    automaton = automaton_of("abab")
    automaton.continuation(10).append("c")
    assert automaton.continuation(3) == list("aba")


# Size


def fibonacci_word(size):
    shorter = [0]
    word = [0, 1]
    while len(word) < size:
        shorter, word = word, word + shorter
    return word[:size]


SIZE = 4000
LONG = {
    "one token": [0] * SIZE,
    "a run twice": ([0] * (SIZE // 2 - 1) + [1]) * 2,
    "a run behind a token": [1] + [0] * (SIZE // 2) + [1, 1] * (SIZE // 4),
    "most states": [0] + [1] * (SIZE - 1),
    "most transitions": [0] + [1] * (SIZE - 2) + [2],
    "period": [0, 1, 2, 3, 4, 5, 6] * (SIZE // 7),
    "Fibonacci": fibonacci_word(SIZE),
    "random": random.Random(0).choices(range(2), k=SIZE),
}


@pytest.mark.parametrize("name", LONG)
def test_memory_stays_linear(name):
    tracemalloc.start()
    automaton = automaton_of(LONG[name])
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 800 * len(automaton)


@pytest.mark.parametrize("period", [1, 2, 7, 100])
def test_a_period_matches_all_but_its_first_turn(period):
    automaton = automaton_of(list(range(period)) * (SIZE // period))
    size = len(automaton)
    assert automaton.match_length == automaton.match_end == size - period
    assert automaton.continuation(2 * period) == list(range(period)) * 2
