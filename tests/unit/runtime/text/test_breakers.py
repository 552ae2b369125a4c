"""Tokens that end repetitions: every way in which a model may write a text."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from edgespec.errors import InputError
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.text.breakers import BreakerFinder
from edgespec.runtime.text.tokenizer import Tokenizer

WORDS = ["a", "b", "c", "n", "ab", "bc", "cab", "xa", "xab", "Ċ", "aĊ", "x"]


def finder(decoder=None):
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    backend = Backend(models.BPE(vocabulary, [("a", "b"), ("b", "c"), ("c", "ab"), ("x", "a")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoder or decoders.ByteLevel()
    return BreakerFinder(Tokenizer(backend, {}))


def found(texts, **options):
    how = {"dry_multiplier": 1.0, "dry_sequence_breakers": texts, **options}
    breakers = finder().of(SamplingOptions(**how))
    return {
        WORDS[token]: sorted("".join(WORDS[each] for each in tail) for tail in tails)
        for token, tails in breakers.items()
    }


def test_tokens_that_hold_a_text_end_repetitions_alone():
    assert found(["\n"]) == {"Ċ": [""], "aĊ": [""]}
    assert found(["ab"]) == {"ab": [""], "cab": [""], "xab": [""], "a": ["b"], "xa": ["b"]}


def test_tokens_that_end_with_a_beginning_of_it_want_the_rest():
    begun = found(["abc"])
    assert begun == {"a": ["bc"], "xa": ["bc"], "ab": ["c"], "cab": ["c"], "xab": ["c"]}
    several = found(["bn", "bc"])
    assert several["bc"] == [""]
    assert {word: several[word] for word in ("b", "ab")} == {"b": ["c", "n"], "ab": ["c", "n"]}


def test_nothing_is_looked_for_where_repetitions_may_be():
    assert found(["\n"], dry_multiplier=0.0) == {}
    assert found(["\n"], dry_penalty_last_n=0) == {}
    assert found([]) == {}


def test_long_texts_count_up_to_forty_bytes():
    assert found(["ab" * 400]) == found(["ab" * 20])


def test_what_is_found_is_kept():
    own = finder()
    options = SamplingOptions(dry_multiplier=1.0)
    assert own.of(options) is own.of(options)


def test_a_tokenizer_whose_bytes_are_not_known_is_told():
    with pytest.raises(InputError, match="dry_sequence_breakers are not known as tokens"):
        finder(decoders.WordPiece()).of(SamplingOptions(dry_multiplier=1.0))
    assert (
        finder(decoders.WordPiece()).of(
            SamplingOptions(dry_multiplier=1.0, dry_sequence_breakers=[])
        )
        == {}
    )
