"""Mirostat (Basu et al., 2021): a text whose tokens are about as surprising as is asked for.

The bound on a token's surprise follows what the tokens before it had, so it is a function of the
text alone. Arithmetic and constants are those of llama.cpp.
"""

from __future__ import annotations

import math

import numpy as np

from edgespec.runtime.arrays import Floats, Ids
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.truncation import largest_indices

_MEASURED = 100  # likeliest tokens by which version 1 measures how steep a distribution is


class Mirostat:
    """The bound of one text, which moves with each token.

    Args:
        options: version, aim and rate.
        vocab_size: number of token ids.
    """

    def __init__(self, options: SamplingOptions, vocab_size: int) -> None:
        self._options = options
        self._vocab_size = vocab_size
        self._bound = 2 * options.mirostat_tau  # bits

    def survivors(self, logits: Floats) -> Ids:
        """Returns which tokens may be sampled, ascending, at least one.

        Args:
            logits: [n] float32, at most as many as there are tokens.
        """
        scaled = (logits - np.float64(logits.max())) / self._options.temperature
        if self._options.mirostat == 1:
            return largest_indices(logits, self._count(scaled))
        bits = (math.log(float(np.exp(scaled).sum())) - scaled) / math.log(2)
        inside = np.flatnonzero(bits <= self._bound)
        return inside if inside.size else largest_indices(logits, 1)

    def observe(self, kept: Floats, chosen: int) -> None:
        """Goes on by a token.

        Args:
            kept: [n] float32 logits of the tokens that survived.
            chosen: which of them the token is.
        """
        scaled = (kept - np.float64(kept[chosen])) / self._options.temperature
        peak = float(scaled.max())
        bits = (peak + math.log(float(np.exp(scaled - peak).sum()))) / math.log(2)
        self._bound -= self._options.mirostat_eta * (bits - self._options.mirostat_tau)

    def _count(self, scaled: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
        """Returns how many of the likeliest tokens version 1 keeps.

        Probabilities are taken for those of Zipf's law, whose exponent the likeliest tell.
        """
        best = np.sort(scaled[largest_indices(scaled, _MEASURED)])[::-1][:_MEASURED]
        ranks = np.arange(1, best.size)
        steps = np.log((ranks + 1) / ranks)
        exponent = float((steps * (best[:-1] - best[1:])).sum() / max((steps**2).sum(), 1e-30))
        beyond = exponent - 1
        try:
            shares = 1 - self._vocab_size**-beyond
            count = (beyond * 2**self._bound / shares) ** (1 / exponent)
        except (ArithmeticError, ValueError):  # a flat row, or one of a single token
            return scaled.size
        return max(int(min(count, scaled.size)), 1)
