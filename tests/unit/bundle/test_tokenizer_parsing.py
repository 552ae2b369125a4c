"""A `tokenizer.json` that is read in pieces is the one that the library reads in one go."""

from __future__ import annotations

import json
import sys
import threading

import pytest
from tokenizers import Tokenizer

from edgespec.bundle import tokenizers
from edgespec.models.embedded import BUNDLE

WORDS = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "<unk>": 5, " ": 6}
TEXT = "abc <s> cab <x>ab q"


def content(merges=(["a", "b"], ["ab", "c"]), added=(), **options):
    """The content of a small file of the kind BPE."""
    model = {"type": "BPE", "vocab": WORDS, "merges": list(merges), **options}
    return {"version": "1.0", "added_tokens": list(added), "model": model}


def token(id_, text, special, **options):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id_, "content": text, "special": special, **flags, **options}


SOUND = {
    "pairs": content(),
    "merges as texts": content(["a b", "ab c"]),
    "unknown token": content(unk_token="<unk>", fuse_unk=True, ignore_merges=True),
    "bytes": content(byte_fallback=True, dropout=None, continuing_subword_prefix=None),
    "parts of words": content([["a", "b"]], continuing_subword_prefix="", end_of_word_suffix=""),
    "added tokens": content(
        added=[
            token(7, "<s>", True),
            token(8, "<x>", False, lstrip=True),
            token(5, "<unk>", True),
            token(9, "cab", False, normalized=True, single_word=True),
        ]
    ),
    "numbers that skip": content(added=[token(7, "<s>", True), token(8, "<x>", True)])
    | {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}},
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_files_are_read_alike(name):
    text = json.dumps(SOUND[name])
    found = tokenizers._in_pieces(text)
    expected = Tokenizer.from_str(text)
    assert found is not None
    assert found.backend.to_str() == expected.to_str()
    assert found.backend.encode(TEXT).ids == expected.encode(TEXT).ids
    assert found.backend.get_vocab() == expected.get_vocab()
    assert found.vocab_size == 1 + max(expected.get_vocab().values())


def test_the_embedded_pairs_file_is_read_alike():
    text = (BUNDLE / "tokenizer.json").read_text(encoding="utf-8")
    found = tokenizers._in_pieces(text)
    assert found is not None
    assert found.backend.to_str() == Tokenizer.from_str(text).to_str()


def test_what_is_kept_of_a_text_is_read_once_again(monkeypatch):
    reads = []
    read = tokenizers._pieces
    monkeypatch.setattr(tokenizers, "_pieces", lambda text: reads.append(text) or read(text))
    text, other = (json.dumps(SOUND[name]) for name in ("added tokens", "pairs"))
    first = tokenizers.parse_tokenizer(text, keep=True)
    first.backend.add_special_tokens(["<mine>"])
    tokenizers.parse_tokenizer(other)
    second = tokenizers.parse_tokenizer(text)
    third = tokenizers.parse_tokenizer(text)
    assert reads == [text, other, text]
    assert first.backend.token_to_id("<mine>") == first.vocab_size
    for each in (second, third):
        assert each.backend.to_str() == Tokenizer.from_str(text).to_str()
        assert each.vocab_size == first.vocab_size
    assert not tokenizers._kept


DAMAGED = {
    "a merge of three": content(["a b c"]),
    "a merge of one": content([["a"]]),
    "a merge of a number": content([1]),
    "a merge of unknown tokens": content([["a", "z"]]),
    "an option that is none": content(dropout="often"),
    "a vocabulary that is none": {"model": {"type": "BPE", "vocab": [1], "merges": []}},
    "no model": {},
    "half a character": content([["\ud800", "b"]]),
    "an added token without text": content(added=[{"id": 7, "special": True}]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_left_to_the_library(name):
    text = json.dumps(DAMAGED[name])
    assert tokenizers._in_pieces(text) is None
    with pytest.raises(Exception, match=r".+"):
        tokenizers.parse_tokenizer(text)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(content(["#version: 0.2", "a b"])),
        json.dumps(content(later=1)),
        json.dumps({"model": {"type": "WordLevel", "vocab": WORDS, "unk_token": "<unk>"}}),
    ],
    ids=["comment", "unknown option", "another kind"],
)
def test_other_files_are_read_by_the_library(text):
    assert tokenizers._in_pieces(text) is None
    assert tokenizers.parse_tokenizer(text).backend.to_str() == Tokenizer.from_str(text).to_str()


def test_errors_of_the_caller_are_not_taken_for_damage(monkeypatch):
    def late(_):
        raise TimeoutError

    monkeypatch.setattr(tokenizers, "_added_token", late)
    with pytest.raises(TimeoutError):
        tokenizers.parse_tokenizer(json.dumps(SOUND["added tokens"]))


def test_other_threads_go_on_while_a_file_is_read(monkeypatch):
    """The library alone would hold the interpreter's lock from the first to the last merge."""
    letters = [chr(0x4E00 + n) for n in range(200)]
    pairs = [[first, second] for first in letters for second in letters]
    tokens = letters + ["".join(pair) for pair in pairs]
    vocabulary = {each: n for n, each in enumerate(tokens)}
    text = json.dumps(content(pairs) | {"model": content(pairs)["model"] | {"vocab": vocabulary}})
    turns = [0]
    done = threading.Event()

    def count():
        while not done.is_set():
            turns[0] += 1

    def turns_of(read):
        before = turns[0]
        read(text)
        return turns[0] - before

    interval = sys.getswitchinterval()
    other = threading.Thread(target=count)
    other.start()
    sys.setswitchinterval(1e-4)
    try:
        assert turns_of(tokenizers._in_pieces) > 3 * turns_of(Tokenizer.from_str)
    finally:
        sys.setswitchinterval(interval)
        done.set()
        other.join()
