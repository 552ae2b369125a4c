"""Tests of what lookup keeps of earlier sequences, against brute force."""

from __future__ import annotations

from dataclasses import replace

from engines import engine_of, request
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.drafters.lookup import History, LookupDrafter

NAME = "lookup"
SHORTEST, LONGEST = 4, 32  # tokens of a match

texts = st.lists(st.integers(0, 2), max_size=50)
said_texts = st.lists(st.tuples(st.sampled_from("ab"), texts, st.integers(0, 20)), max_size=6)


def test_what_was_said_is_expected_again_with_the_same_salt_alone():
    engine = engine_of(LookupDrafter(), target=(1.0, 0.01))
    asked = request(tuple(range(9)), 60, draft=NAME)

    def rounds(salt):
        return len(list(engine.generate(replace(asked, salt=salt))))

    first = rounds("one")
    assert rounds("one") < first / 2
    assert rounds("other") == rounds("") == first
    assert rounds("other") < first / 2
    engine.forget()
    assert rounds("one") == first


def test_a_source_that_is_not_asked_for_keeps_nothing():
    engine = engine_of(LookupDrafter(), target=(1.0, 0.01))
    asked = request(tuple(range(9)), 60, draft=NAME)
    first = len(list(engine_of(LookupDrafter(), target=(1.0, 0.01)).generate(asked)))
    list(engine.generate(replace(asked, draft="none")))
    assert len(list(engine.generate(asked))) == first


@given(said_texts, texts, st.integers(40, 200))
def test_matches_were_said_and_are_not_forgotten_early(said, text, capacity):
    known = History(capacity)
    kept = []
    for salt, tokens, start in said:
        known.add(salt, tokens, start)
        if start < len(tokens):
            first = max(0, start - LONGEST, len(tokens) + 1 - capacity)
            kept.append((salt, tokens[first:], start - first))
    end = text[-LONGEST:]
    length, followed = known.match("a", end, 5)
    own = [(tokens, start) for salt, tokens, start in kept if salt == "a"]
    places = [
        (tokens, place)
        for tokens, start in own
        for place in range(max(start, length), len(tokens))
        if length and tokens[place - length : place] == end[-length:]
    ]
    if length:
        assert length >= SHORTEST
        assert any(tokens[place : place + 5] == followed for tokens, place in places)
    elif sum(len(tokens) + 1 for _, tokens, _ in kept) <= capacity and len(end) >= SHORTEST:
        last = end[-SHORTEST:]
        assert not any(
            tokens[place - SHORTEST : place] == last
            for tokens, start in own
            for place in range(max(start, SHORTEST), len(tokens))
        )


def test_memory_and_the_places_of_old_tokens_are_bounded():
    known = History(100)
    known.add("", list(range(60)), 0)
    assert known.match("", list(range(20, 40)), 3) == (20, [40, 41, 42])
    for number in range(1, 50):
        tokens = list(range(1000 * number, 1000 * number + 300))
        known.add("", tokens, 0)
        assert known.match("", tokens[:250], 3)[1] == tokens[250:253]
        assert known.match("", tokens[:150], 3) == (0, [])  # all but the last hundred
        assert known.match("", tokens, 3) == (0, [])  # and nothing followed these
    assert known.match("", list(range(20, 40)), 3) == (0, [])
