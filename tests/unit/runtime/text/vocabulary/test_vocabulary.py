"""Tokens as bytes, and the tokens that two vocabularies share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tokenizers
from foreign import ENGLISH, GREEK, TEXTS, byte_level, encoded, renumbered, sentence_piece
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import BundleError
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.vocabulary.mapping import MISSING, VocabularyMap
from edgespec.runtime.text.vocabulary.vocabulary import (
    BYTE_LEVEL,
    SENTENCE_PIECE,
    Vocabulary,
    whole_characters,
)

BACKENDS = {BYTE_LEVEL: byte_level(), SENTENCE_PIECE: sentence_piece()}
VOCABULARIES = {kind: Vocabulary(Tokenizer(each, {})) for kind, each in BACKENDS.items()}
kinds = pytest.mark.parametrize("kind", VOCABULARIES)


def vocabulary(backend):
    return Vocabulary(Tokenizer(backend, {}))


@kinds
def test_the_bytes_of_tokens_are_those_of_the_text(kind):
    found = VOCABULARIES[kind]
    assert found.kind == kind
    for text in TEXTS:
        assert found.bytes_of(found.encode(text.encode())) == text.encode()


@kinds
def test_in_the_middle_of_a_text_tokens_are_what_the_tokenizer_gives_there(kind):
    """SentencePiece would put a space before each part."""
    found = VOCABULARIES[kind]
    backend = BACKENDS[kind]
    whole = encoded(backend, "one two three")
    cut = len(encoded(backend, "one"))
    assert found.encode(b" two three") == whole[cut:]


@kinds
@given(data=st.binary(max_size=40))
def test_any_bytes_can_be_encoded(kind, data):
    found = VOCABULARIES[kind]
    assert found.bytes_of(found.encode(data)) == data


@kinds
def test_a_part_of_a_character_is_single_bytes(kind):
    found = VOCABULARIES[kind]
    data = "a🙂".encode()
    for end in range(2, len(data)):
        assert found.pieces[found.encode(data[:end])[-1]] == data[end - 1 : end]


def test_bytes_that_a_vocabulary_lacks_are_left_out():
    content = sentence_piece(GREEK + "ab").to_str().replace("<0xF0>", "<0xF0")
    found = vocabulary(tokenizers.Tokenizer.from_str(content))
    assert found.bytes_of(found.encode(b"a\xf0b")) == b"ab"


def test_ids_of_padding_have_no_bytes():
    found = VOCABULARIES[BYTE_LEVEL]
    assert found.bytes_of([10**6, *found.encode(b"a")]) == b"a"


def test_tokens_of_another_kind_are_refused():
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(BundleError, match=r"decodes by nothing, .*: choose a draft with"):
        vocabulary(words)
    words.decoder = tokenizers.decoders.WordPiece()
    with pytest.raises(BundleError, match="decodes by WordPiece, so its tokens are not known"):
        vocabulary(words)


@given(st.text(max_size=8), st.integers(0, 40))
def test_whole_characters_are_the_longest_valid_beginning(text, end):
    data = text.encode()[:end]
    cut = whole_characters(data)
    assert data[:cut].decode() == data.decode(errors="ignore")


# Two vocabularies


def test_a_reordered_vocabulary_translates_token_by_token():
    order = list(reversed(range(BACKENDS[BYTE_LEVEL].get_vocab_size())))
    target = VOCABULARIES[BYTE_LEVEL]
    found = VocabularyMap(target, vocabulary(renumbered(BACKENDS[BYTE_LEVEL], order)))
    assert found.to_draft.tolist() == order
    assert [found.to_target[id_] for id_ in order] == list(range(len(order)))
    assert found.overlap == 1
    assert found.shares_enough


def test_what_is_shared_is_the_same_bytes_there_and_back():
    found = VocabularyMap(VOCABULARIES[BYTE_LEVEL], VOCABULARIES[SENTENCE_PIECE])
    shared = 0
    for id_, own in enumerate(found.to_draft.tolist()):
        if own != MISSING:
            assert found.target.pieces[id_] == found.draft.pieces[own]
            assert found.to_target[own] == id_
            shared += 1
    assert shared >= 256  # all single bytes
    assert found.overlap < 0.1
    assert not found.shares_enough


def test_special_tokens_translate_to_special_tokens_of_the_same_name_only():
    target = vocabulary(byte_level(ENGLISH, 300, "<|end|>", "<|user|>"))
    draft = byte_level(ENGLISH, 300, "<|end|>")
    draft.add_tokens(["<|user|>"])  # not as a special one
    found = VocabularyMap(target, vocabulary(draft))
    assert found.to_draft[target.names[b"<|end|>"]] == found.draft.names[b"<|end|>"]
    assert found.to_draft[target.names[b"<|user|>"]] == MISSING


def test_a_byte_that_is_also_a_token_is_that_token():
    """SentencePiece spells bytes only where it has no other token."""
    found = vocabulary(sentence_piece(GREEK + "abc"))
    plain = found.words[b"a"]
    spelled = found._backend.token_to_id("<0x61>")
    assert plain != spelled
    assert found.pieces[spelled] == found.pieces[plain] == b"a"
    mapped = VocabularyMap(VOCABULARIES[BYTE_LEVEL], found)
    assert mapped.to_target[spelled] == MISSING
    assert mapped.to_target[plain] == VOCABULARIES[BYTE_LEVEL].words[b"a"]


@pytest.mark.skipif(
    "EDGESPEC_REAL_MODELS" not in os.environ,
    reason="EDGESPEC_REAL_MODELS names no folder with smollm2-135m",
)
def test_smollm_has_the_common_words_of_qwen():
    folder = Path(os.environ["EDGESPEC_REAL_MODELS"])
    if not (folder / "qwen-coder-0.5b").is_dir():
        pytest.skip(f"{folder} has no qwen-coder-0.5b")
    names = ("qwen-coder-0.5b", "smollm2-135m")
    target, draft = (Vocabulary(Tokenizer.from_folder(folder / name)) for name in names)
    found = VocabularyMap(target, draft)
    assert 0.25 < found.overlap < 0.27
    assert not found.shares_enough  # the larger one's are many more
    for word in (" the", " return", "\n", "import"):
        [own] = draft.encode(word.encode())
        assert found.to_target[own] == target.encode(word.encode())[0]
    for text in TEXTS:
        assert target.bytes_of(target.encode(text.encode())) == text.encode()
        assert draft.bytes_of(draft.encode(text.encode())) == text.encode()
