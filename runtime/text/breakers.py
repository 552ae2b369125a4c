"""By which tokens a model writes the texts that end repetitions, as llama.cpp finds them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import accumulate

from edgespec.errors import BundleError, InputError
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.repetitions import Breakers
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.vocabulary.vocabulary import Vocabulary

_LONGEST = 40  # bytes of a text that count
_LONGEST_TAIL = 20  # tokens of the rest of a text
_KEPT = 8  # sets of texts
_END = "\u0100"  # behind the bytes of each token, which are letters of Latin-1


class BreakerFinder:
    """Finds the tokens in which texts lie or begin.

    Args:
        tokenizer: tokenizer of the model.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._found = lru_cache(_KEPT)(self._find)

    def of(self, options: SamplingOptions) -> Breakers:
        """Returns what ends the repetitions of a text; nothing where none are penalized.

        Raises:
            InputError: if the tokens of the model are not known as bytes.
        """
        return self._found(options.dry_sequence_breakers) if options.penalizes_repetitions else {}

    def _find(self, texts: tuple[str, ...]) -> Breakers:
        found = defaultdict[int, list[tuple[int, ...]]](list)
        for text in texts:
            data = text.encode(errors="replace")[:_LONGEST]
            letters = data.decode("latin-1")
            whole = set(self._tokens_with(letters))
            for token in whole:
                found[token].append(())
            for count in range(1, len(data)):
                begun = set(self._tokens_with(letters[:count] + _END)) - whole
                tail = tuple(self._vocabulary.encode(data[count:])[:_LONGEST_TAIL]) if begun else ()
                for token in begun if tail else ():
                    found[token].append(tail)
        return dict(found)

    def _tokens_with(self, letters: str) -> Iterator[int]:
        """Yields the tokens in whose bytes some letters are."""
        joined, starts = self._joined
        place = joined.find(letters)
        while place != -1:
            token = bisect_right(starts, place) - 1
            yield token
            place = joined.find(letters, starts[token + 1])

    @cached_property
    def _joined(self) -> tuple[str, list[int]]:
        """The bytes of all tokens as letters, and where each one's begin."""
        parts = [piece.decode("latin-1") + _END for piece in self._vocabulary.pieces]
        return "".join(parts), list(accumulate(map(len, parts), initial=0))

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        try:
            return Vocabulary(self._tokenizer)
        except BundleError as error:
            raise InputError(
                "dry_sequence_breakers are not known as tokens of this model, since its "
                f"tokenizer is of another kind ({error}): give none, or leave out dry_multiplier"
            ) from error
