"""Texts in the draft's tokens as they grow, and drafts in the target's."""

from __future__ import annotations

import pytest
from foreign import ENGLISH, TEXTS, byte_level, sentence_piece
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers, processors

from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.vocabulary.mapping import VocabularyMap
from edgespec.runtime.text.vocabulary.translation import RecodedText, SharedText, continuation
from edgespec.runtime.text.vocabulary.vocabulary import Vocabulary


def vocabulary(backend):
    return Vocabulary(Tokenizer(backend, {}))


def beginning(backend, token):
    """Lets a tokenizer put a token before texts."""
    id_ = backend.token_to_id(token)
    backend.post_processor = processors.TemplateProcessing(f"{token} $A", None, [(token, id_)])
    return backend


FEW = vocabulary(byte_level(ENGLISH, 300))
MANY = vocabulary(byte_level(ENGLISH, 500))
PIECES = vocabulary(beginning(sentence_piece(ENGLISH, 200), "<s>"))
PAIRS = {
    "fewer": VocabularyMap(FEW, MANY),
    "more": VocabularyMap(MANY, FEW),
    "pieces": VocabularyMap(MANY, PIECES),
    "from pieces": VocabularyMap(PIECES, FEW),
}
pairs = pytest.mark.parametrize("pair", PAIRS)
LONG = ENGLISH[:1500] + "東京の天気はとても良いです。" * 30 + ENGLISH[:200]


@pairs
@pytest.mark.parametrize("kind", [SharedText, RecodedText])
@given(data=st.data())
def test_however_a_text_grows_its_bytes_stay(pair, kind, data):
    """Also where it ends within a character, or is no text at all."""
    both = PAIRS[pair]
    ids = st.lists(st.integers(0, len(both.target.pieces) - 1), min_size=1, max_size=12)
    text = []
    grown = kind(both)
    for new in data.draw(st.lists(ids, min_size=1, max_size=6)):
        text += new
        found = grown.read(text)
        first = len(both.draft.beginning)
        assert tuple(found[:first]) == both.draft.beginning
        known = both.target.beginning
        own = text[len(known) :] if tuple(text[: len(known)]) == known else text
        if both.target.bytes_of(own):
            assert both.draft.bytes_of(found[first:]) == both.target.bytes_of(own)


@pairs
def test_a_recoded_text_is_what_the_tokenizer_gives_for_all_of_it(pair):
    both = PAIRS[pair]
    text = both.target.encode(LONG.encode())
    grown = RecodedText(both)
    for end in range(1, len(text) + 1, 3):
        found = grown.read(text[:end])
    found = grown.read(text)
    assert found == [*both.draft.beginning, *both.draft.encode(LONG.encode())]


@pairs
def test_only_the_end_of_a_recoded_text_is_encoded_again(pair, monkeypatch):
    both = PAIRS[pair]
    text = both.target.encode(ENGLISH.encode())
    grown = RecodedText(both)
    lengths = []
    plain = both.draft.encode
    monkeypatch.setattr(both.draft, "encode", lambda data: lengths.append(len(data)) or plain(data))
    grown.read(text[:-200])
    lengths.clear()
    for end in range(len(text) - 199, len(text) + 1):
        grown.read(text[:end])
    assert len(lengths) == 200
    assert max(lengths) < 400


@pairs
def test_a_shared_text_never_changes_what_it_was(pair):
    both = PAIRS[pair]
    text = both.target.encode(LONG.encode())
    grown = SharedText(both)
    before = []
    for end in range(1, len(text)):
        found = list(grown.read(text[:end]))
        assert found[: len(before)] == before
        assert grown.length == len(found) > len(before)
        before = found


def test_tokens_that_begin_texts_are_not_translated():
    both = VocabularyMap(PIECES, vocabulary(beginning(byte_level(), "<|endoftext|>")))
    for kind in (SharedText, RecodedText):
        text = [*PIECES.beginning, *PIECES.encode(b" a b")]
        found = kind(both).read(text)
        assert tuple(found[:1]) == both.draft.beginning
        assert both.draft.bytes_of(found[1:]) == b" a b"


def test_a_token_that_stands_for_nothing_is_still_something_to_read():
    both = PAIRS["fewer"]
    for kind in (SharedText, RecodedText):
        assert len(kind(both).read([10**6])) == 1


def test_a_text_that_the_drafts_tokenizer_changes_is_not_encoded_for_ever():
    draft = byte_level()
    draft.normalizer = normalizers.Lowercase()
    both = VocabularyMap(FEW, vocabulary(draft))
    text = FEW.encode(b"ABC def " * 300)
    grown = RecodedText(both)
    for end in range(1, len(text) + 1):
        found = grown.read(text[:end])
    assert both.draft.bytes_of(found).startswith(b"abc def abc")
    assert len(grown._end) < 2000


# Drafts in the target's tokens


@pairs
@given(data=st.data())
def test_a_continuation_is_that_of_the_whole_text(pair, data):
    """Wherever the tokenizer would have put a border itself."""
    target = PAIRS[pair].target
    text = data.draw(st.sampled_from([LONG[:300], LONG[1500:1600], *TEXTS[:3]]))
    ids = target.encode(text.encode())
    cut = data.draw(st.integers(1, len(ids) - 1))
    drafted = target.bytes_of(ids[cut:])
    found = continuation(target, ids[:cut], drafted)
    if ids[cut - 1] in target.special or any(id_ in target.special for id_ in ids[cut - 1 :]):
        return
    assert [id_ for id_, _ in found] == ids[cut:]
    assert [end for _, end in found] == [
        len(target.bytes_of(ids[cut : n + 1])) for n in range(cut, len(ids))
    ]


@pairs
@given(data=st.data())
def test_a_continuation_begins_with_what_was_drafted(pair, data):
    """The text's own tokens are never tokenized again, however strange they are."""
    target = PAIRS[pair].target
    ids = st.lists(st.integers(0, len(target.pieces) - 1), max_size=9)
    text = data.draw(ids)
    drafted = data.draw(st.binary(max_size=12) | st.text().map(str.encode))
    found = continuation(target, text, drafted)
    told = target.bytes_of([id_ for id_, _ in found])
    assert drafted.startswith(told)
    assert [end for _, end in found] == [
        len(target.bytes_of([id_ for id_, _ in found[: n + 1]])) for n in range(len(found))
    ]


def test_a_word_that_the_text_has_begun_is_continued_as_the_text_has_it():
    word = max((piece for piece in MANY.pieces if piece.isalpha()), key=len)
    text = MANY.encode(word[:1])
    assert MANY.encode(word) != text + MANY.encode(word[1:])  # the tokenizer would merge them
    assert [id_ for id_, _ in continuation(MANY, text, word[1:])] == MANY.encode(word[1:])


def test_a_draft_may_end_a_character_that_the_text_has_begun():
    data = "🙂!".encode()
    text = [FEW.words[data[:1]], FEW.words[data[1:2]]]
    found = continuation(FEW, text, data[2:])
    assert FEW.bytes_of([id_ for id_, _ in found]) == data[2:]
    assert continuation(FEW, text, data[3:]) == []  # another's end
    assert continuation(FEW, FEW.encode(b"a"), data[:2]) == []  # not a whole one yet
