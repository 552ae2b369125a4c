"""Tests of streamed decoding."""

from __future__ import annotations

import itertools

import pytest
from backends import HARD, byte_fallback, byte_level, metaspace
from hypothesis import example, given
from hypothesis import strategies as st

from edgespec.runtime.text.decoder import CharacterDecoder
from edgespec.runtime.text.tokenizer import Tokenizer

TOKENIZERS = {
    make.__name__: Tokenizer(make(), {}) for make in (byte_level, metaspace, byte_fallback)
}
each_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


def assert_streams(tokenizer, ids, context=()):
    decoder = CharacterDecoder(tokenizer, context)
    pieces = [decoder.push(id_) for id_ in ids]
    whole = tokenizer.decode([*context, *ids])[len(tokenizer.decode(context)) :]
    assert "".join(pieces) + decoder.flush() == whole
    return pieces


@each_tokenizer
@pytest.mark.parametrize("text", HARD)
def test_streamed_pieces_join_to_the_decoded_text(name, text):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    pieces = assert_streams(tokenizer, ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@each_tokenizer
@given(
    text=st.text(st.sampled_from("ab zé中字🎉👧\u0301\u200d\n"), max_size=20),
    cut=st.integers(0, 20),
)
def test_streaming_any_text_after_any_context(name, text, cut):
    tokenizer = TOKENIZERS[name]
    context = tokenizer.encode(text[:cut])
    ids = tokenizer.encode(text[cut:])
    for piece in assert_streams(tokenizer, ids, context):
        assert "\ufffd" not in piece


def test_no_half_character_is_shown_and_none_is_late():
    tokenizer = TOKENIZERS["byte_fallback"]
    ids = tokenizer.encode("a🎉b")
    assert len(ids) == 7  # the space, a, four bytes, b
    assert assert_streams(tokenizer, ids) == ["", "a", "", "", "", "🎉", "b"]


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_a_text_that_ends_inside_a_character_shows_it_at_the_flush_only(name):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode("a🐙")[:-1]
    decoder = CharacterDecoder(tokenizer)
    assert "".join(decoder.push(id_) for id_ in ids) == "a"
    assert set(decoder.flush()) == {"\ufffd"}


def inside(tokenizer, text):
    """Token ids of text in the middle of a text, without a leading token."""
    return tokenizer.encode("E" + text)[len(tokenizer.encode("E")) :]


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
@given(
    parts=st.lists(st.tuples(st.sampled_from("a é🎉🐙"), st.integers(0, 2)), max_size=8),
    context=st.integers(0, 9),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
@example(parts=[("🐙", 0), ("é", 0)], context=0, sizes=[5])  # a round ends inside a character
@example(parts=[("🐙", 0), ("a", 0)], context=2, sizes=[1])  # a prompt does
def test_the_text_depends_on_the_tokens_alone(name, parts, context, sizes):
    """However tokens are grouped, and whether or not characters lack their first bytes."""
    tokenizer = TOKENIZERS[name]
    ids = [id_ for char, missing in parts for id_ in inside(tokenizer, char)[missing:]]
    prompt = tokenizer.encode("E") + ids[:context]
    alone = CharacterDecoder(tokenizer, prompt)
    expected = "".join(map(alone.push, ids[context:])) + alone.flush()
    together = CharacterDecoder(tokenizer, prompt)
    text = ""
    place = context
    for size in itertools.cycle(sizes):
        if place >= len(ids):
            break
        text += together.push(*ids[place : place + size])
        place += size
    assert text + together.flush() == expected
    if not any(missing for _, missing in parts):
        known = tokenizer.decode(prompt).rstrip("\ufffd")
        assert known + expected == tokenizer.decode(tokenizer.encode("E") + ids)


def test_a_broken_character_does_not_break_those_before_it():
    tokenizer = TOKENIZERS["byte_fallback"]
    octopus = inside(tokenizer, "🐙")
    decoder = CharacterDecoder(tokenizer)
    assert decoder.push(*octopus, octopus[0]) == "🐙"
    assert decoder.push(*inside(tokenizer, "a")) == "\ufffda"
    assert decoder.push(*octopus, octopus[0]) == "🐙"
    assert decoder.flush() == "\ufffd"


def test_a_continuation_keeps_its_leading_space():
    tokenizer = TOKENIZERS["metaspace"]
    ids = tokenizer.encode("brown")
    assert "".join(assert_streams(tokenizer, ids)) == "brown"
    assert "".join(assert_streams(tokenizer, ids, tokenizer.encode("the"))) == " brown"


def test_special_tokens_are_not_shown():
    tokenizer = TOKENIZERS["byte_fallback"]
    bos, eos = 1, 2
    ids = [bos, *tokenizer.encode("ab"), eos, *tokenizer.encode("cd")]
    assert tokenizer.decode(ids) == "ab cd"
    assert tokenizer.decode(ids, skip_special=False) != "ab cd"
    assert_streams(tokenizer, ids)
    assert tokenizer.special_ids == {bos, eos}


def test_a_token_is_decoded_in_a_short_window():
    class Counting:
        longest = 0

        def decode(self, ids):
            self.longest = max(self.longest, len(ids))
            return "x" * len(ids)

    counting = Counting()
    decoder = CharacterDecoder(counting)
    for id_ in range(1000):
        assert decoder.push(id_) == "x"
    assert counting.longest <= 3
