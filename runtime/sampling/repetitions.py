"""Tokens that would go on with a repetition, and what they lose: DRY ("don't repeat yourself").

Designed by p-e-w (2024), with the arithmetic of llama.cpp: where the last tokens of a text came
before, the token that followed them there loses `multiplier * base ** (length - allowed_length)`.
The length counts no token from before the last sequence breaker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from edgespec.runtime.arrays import Ids
from edgespec.runtime.sampling.options import SamplingOptions

Breakers = Mapping[int, Sequence[Sequence[int]]]
"""Tokens that end repetitions, each with what must follow it; nothing where it does so alone."""

Lengths = npt.NDArray[np.int32]

_MOST = 1e30  # as good as infinite, see `penalties`
_LOG_OF_LARGEST = 88.7228391  # of a float32


class Repetitions:
    """The repetitions of one text, as it grows.

    Args:
        options: how they are penalized.
        breakers: what ends them.
        tokens: the tokens so far.

    Attributes:
        lengths: [n] for each token but the last, how many tokens that end with it are also the last
            ones of the text. It is replaced, never changed.
    """

    def __init__(self, options: SamplingOptions, breakers: Breakers, tokens: Sequence[int]) -> None:
        self._options = options
        self._breakers = breakers
        tails = [tail for each in breakers.values() for tail in each]
        self._longest_tail = max(map(len, tails), default=0)
        self._alone = {token for token, each in breakers.items() if not all(each)}
        self._tokens: Ids = np.array(tokens, np.int64)
        self.lengths = _lengths(tokens)
        base = options.dry_base
        self._most = int(_LOG_OF_LARGEST / math.log(base)) if base > 1.000001 else math.inf

    def append(self, token: int) -> None:
        """Goes on by a token."""
        count = self.lengths.size
        if count == self._tokens.size:
            self._tokens = np.append(self._tokens, np.zeros(count + 64, np.int64))
        again = self._tokens[:count] == token
        lengths = np.zeros(count + 1, np.int32)
        lengths[:count] = again
        lengths[1:count] += self.lengths[: max(count - 1, 0)] * again[1:]
        self._tokens[count] = token
        self.lengths = lengths

    def penalties(self) -> dict[int, float]:
        """Returns what the logits of tokens lose that would go on with a repetition."""
        options = self._options
        count = self.lengths.size
        last = count if options.dry_penalty_last_n == -1 else options.dry_penalty_last_n
        first = max(count - last, 0)
        lengths = self.lengths[first : max(count - 1, first)]
        if first:  # what came before is not looked at
            lengths = np.minimum(lengths, np.arange(1, lengths.size + 1))
        long = np.flatnonzero(lengths >= options.dry_allowed_length)
        if not long.size:
            return {}
        most = self._since_breaker(int(lengths.max()), count - first)
        longest = dict[int, int]()
        followers = self._tokens[first + long + 1].tolist()
        for token, length in zip(followers, lengths[long].tolist(), strict=True):
            if token not in self._alone:
                longest[token] = max(longest.get(token, 0), min(length, most))
        return {
            token: self._lost(length - options.dry_allowed_length)
            for token, length in longest.items()
            if length >= options.dry_allowed_length
        }

    def _lost(self, beyond: int) -> float:
        """Returns what a logit loses for a repetition that is so much longer than is allowed."""
        options = self._options
        return min(options.dry_multiplier * options.dry_base ** min(beyond, self._most), _MOST)

    def _since_breaker(self, most: int, count: int) -> int:
        """Returns how many of the last tokens follow a breaker, where these are fewer than `most`.

        Args:
            most: see above.
            count: number of last tokens that are looked at.
        """
        end = self.lengths.size
        for back in range(min(most + self._longest_tail + 1, count)):
            tails = self._breakers.get(int(self._tokens[end - 1 - back]), ())
            following = self._tokens[end - back : end].tolist()
            ended = [len(tail) for tail in tails if following[: len(tail)] == list(tail)]
            if ended:
                return back - max(ended)
        return most


def _lengths(tokens: Sequence[int]) -> Lengths:
    """Returns `Repetitions.lengths` of tokens, by the Z-algorithm from their end."""
    count = len(tokens)
    backwards = tokens[::-1]
    found = [0] * count  # of the token so many before the last
    start = stop = 0  # the last tokens come again in this part
    for place in range(1, count):
        length = min(stop - place, found[place - start]) if place < stop else 0
        while place + length < count and backwards[length] == backwards[place + length]:
            length += 1
        found[place] = length
        if place + length > stop:
            start = place
            stop = place + length
    return np.array(found[::-1], np.int32)
