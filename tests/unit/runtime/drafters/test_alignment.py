"""Tests of the alignment of a text with its prediction."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.drafters.alignment import Alignment, Edits, Prediction

# Larger ids share bytes with small ones, so that what is found across tokens' borders is wrong.
letters = st.lists(st.sampled_from([0, 1, 2, 256, 257, 65536]), max_size=30)

OLD = "def area ( shape ) : return shape . w * shape . h ; print ( area ( shape ) )"


def words(text):
    return text.split()


def numbered(text, known):
    return [known.setdefault(word, len(known)) for word in words(text)]


def surprises(old, new):
    """Indices of the new tokens that the alignment does not expect; what it followed at the end."""
    known = {}
    alignment = Alignment(Prediction(numbered(old, known)))
    places = []
    for place, token in enumerate(numbered(new, known)):
        if token not in [expected.token for expected in alignment.expected]:
            places.append(place)
        alignment.read(token)
    return places, alignment.followed


def expected_after(old, new):
    """The first way on after a text, as words."""
    known = {}
    alignment = Alignment(Prediction(numbered(old, known)))
    for token in numbered(new, known):
        alignment.read(token)
    names = list(known)
    paths = alignment.paths()
    return " ".join(names[expected.token] for expected in paths[0]) if paths else ""


def occurrences(text, part):
    """Ends of all occurrences."""
    return [end for end in range(len(part), len(text) + 1) if text[end - len(part) : end] == part]


@given(letters, letters)
def test_the_longest_suffix_that_was_predicted(tokens, text):
    automaton = Prediction(tokens).automaton
    state = length = 0
    for size, token in enumerate(text, 1):
        state, length = automaton.follow(state, length, token)
        longest = max(n for n in range(size + 1) if occurrences(tokens, text[size - n : size]))
        assert length == longest
        end = automaton.end(state)
        assert tokens[end - length : end] == text[size - length : size]


@given(letters, st.data())
def test_the_next_place_ahead_or_else_the_last_one(tokens, data):
    if not tokens:
        return
    end = data.draw(st.integers(1, len(tokens)))
    length = data.draw(st.integers(1, end))
    after = data.draw(st.integers(0, len(tokens)))
    ends = occurrences(tokens, tokens[end - length : end])
    ahead = [each for each in ends if each > after]
    assert Prediction(tokens).nearest(end, length, after) == (ahead[0] if ahead else ends[-1])


@given(letters)
def test_what_comes_as_predicted_is_expected_throughout(tokens):
    alignment = Alignment(Prediction(tokens))
    for place, token in enumerate(tokens):
        (path,) = alignment.paths()
        assert [expected.token for expected in path] == tokens[place:]
        alignment.read(token)
    assert alignment.expected == []
    assert alignment.followed == len(tokens)


@given(letters, letters)
def test_any_text_can_be_read(tokens, text):
    alignment = Alignment(Prediction(tokens))
    for token in text:
        assert len(alignment.paths()) <= 2
        alignment.read(token)
        for path in alignment.paths():
            assert all(each.token in {*tokens, *text} for each in islice(path, 99))
    assert alignment.followed <= len(tokens)


def test_nothing_in_common():
    assert surprises("a b c", "x y z") == ([0, 1, 2], 0)
    assert expected_after("a b c", "x") == ""


@pytest.mark.parametrize(
    ("new", "unexpected"),
    [
        ("a X c d e f g h", [1, 2]),  # replaced
        ("a b X c d e f g h", [2, 3]),  # put in
        ("a b e f g h", [2]),  # left out
        ("X Y a b c d e f g h", [0, 1, 2]),  # put before all
        ("a b c d e f g h X Y", [8, 9]),  # and behind
        ("f g h", [0]),  # begun late
    ],
)
def test_behind_an_edit_it_goes_on(new, unexpected):
    assert surprises("a b c d e f g h", new)[0] == unexpected


def test_it_goes_on_ahead_where_the_same_tokens_are_behind_too():
    old = "x = 1 ; a ; x = 1 ; b ; x = 1 ; c"
    assert expected_after(old, "x = 1 ; a ; y = 1 ;") == "b ; y = 1 ; c"


def test_it_goes_back_where_the_tokens_are_nowhere_ahead():
    assert expected_after("a b c d e f", "a b c d e f b") == "c d e f"


def test_a_long_match_far_away_is_a_way_on_beside_a_short_one_nearby():
    middle = " ".join(f"m{n}" for n in range(40))
    known = {}
    alignment = Alignment(Prediction(numbered(f"a b ( c {middle} p q r ( d e", known)))
    for token in numbered("a b X p q r (", known):
        alignment.read(token)
    assert [each.token for each in alignment.expected] == [known["d"]]
    alignment = Alignment(Prediction(numbered(f"a b ( c {middle} p q r ( d e", known)))
    for token in numbered("a b r (", known):
        alignment.read(token)
    assert [each.token for each in alignment.expected] == [known["d"]]


def test_a_renaming_is_expected_after_the_first_time():
    new = OLD.replace("shape", "some thing")
    places, _ = surprises(OLD, new)
    assert places == [3, 4, 5]  # both words and what is behind them, and none further on


def test_tokens_that_are_put_in_are_expected_at_the_next_place_alike():
    old = "def f ( self ) : pass ; def g ( self ) : pass ; def h ( self ) : pass"
    new = old.replace("self )", "self , timeout )")
    assert surprises(old, new)[0] == [4, 5, 6]


def test_it_is_known_how_often_an_edit_was_made():
    known = {}
    old = " ; ".join(f"call{n} ( x , y )" for n in range(5))
    alignment = Alignment(Prediction(numbered(old, known)))
    repeats = []
    for token in numbered(old.replace("x", "my x"), known):
        repeats += [each.repeats for each in alignment.expected if each.repeats]
        alignment.read(token)
    assert repeats == [1, 2, 3, 4]


def test_what_is_changed_only_once_is_not_expected_again_and_again():
    old = " ; ".join(f"call{n} ( x )" for n in range(9))
    new = old.replace("x )", "y )", 1)
    places, followed = surprises(old, new)
    assert places[:2] == [2, 3]
    assert len(places) <= 3  # it is expected a second time, and no more
    assert followed >= len(words(old)) - 2


def test_edits_are_expected_while_they_are_made_more_often_than_not():
    tokens = [1, 2, 3, 1, 2, 3, 1, 2, 3]
    edits = Edits(tokens)
    assert edits.at(1) is None
    edits.learn(1, 2, [7, 8])
    edit = edits.at(4)
    assert (edit.old, edit.new, edit.hits) == ((2,), (7, 8), 1)
    assert edits.at(3) is None
    edit.misses += 1
    assert edits.at(7) is None
    edits.learn(4, 5, [7, 8])
    assert edits.at(7) is edit
    assert edit.hits == 2


@pytest.mark.parametrize(
    ("start", "stop", "new"),
    [(2, 1, [7]), (0, 17, [7]), (1, 2, []), (1, 2, [7] * 33), (40, 40, [7])],
    ids=str,
)
def test_what_is_no_edit_is_not_learned(start, stop, new):
    edits = Edits([5] * 40)
    edits.learn(start, stop, new)
    assert all(edits.at(place) is None for place in range(41))
