"""A correction of a draft model's output, learned from what the target has said of it.

What is added to the logit of a candidate is a sum of weights, one for each of the n-grams of two to
four tokens that the candidate would end. The weights are looked up by the n-gram's hash, so their
memory is fixed (hashed n-grams beside a network: Mikolov et al., Strategies for Training Large
Scale Neural Network Language Models, 2011). All weights are zero at first. As the sum is linear in
them, learning has a single optimum, and a weight moves only where its n-gram has occurred.

That a draft learns from verifications while it is used follows Liu et al., Online Speculative
Decoding, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.runtime.drafters.ranking import Candidates

SPAN = 3
"""Number of tokens before a candidate that its correction depends on."""
WIDTH = 16
"""Number of candidates of each row that are corrected, the likeliest ones."""
SIZE = 1 << 18
"""Number of weights."""

_BITS = SIZE.bit_length() - 1
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # of Fibonacci hashing (Knuth): 2**64 / golden ratio
_FOLD = np.uint64(32)
# Multilinear hashing (Carter and Wegman, 1979): column n sums up the last n + 1 tokens, each times
# a factor of its own. Products wrap at 2**64.
_POWERS = np.full(SPAN**2, _MULTIPLIER) ** np.arange(1, SPAN**2 + 1, dtype=np.uint64)
_FACTORS = np.triu(_POWERS.reshape(SPAN, SPAN))[::-1]
# The step of a weight is _RATE * gradient / sqrt(_CAUTION + sum of squared gradients): Duchi et
# al., Adaptive Subgradient Methods, 2011. The second keeps small gradients from taking full steps.
_RATE, _CAUTION = 0.1, 0.1
_MOST = 10.0  # largest correction of a logit, either way
_LEAST_MASS = 1e-6  # of the corrected distribution, relative to the draft's

Floats32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Examples:
    """What a draft and the target said of the same tokens after n rows.

    Attributes:
        contexts: [n, SPAN] int, the last tokens before the candidates; -1 before the text.
        tokens: [n, K] int, the draft's candidates.
        draft: [n, K] float32, their logits by the draft, uncorrected.
        target: [n, K] float32, their logits by the target.
    """

    contexts: npt.NDArray[np.integer[Any]]
    tokens: npt.NDArray[np.integer[Any]]
    draft: Floats32
    target: Floats32


class Correction:
    """The weights of a correction.

    Args:
        weights: [SIZE] float32; None for zeros.
        squares: [SIZE] float32, sums of squared gradients; None for zeros.
    """

    def __init__(self, weights: Floats32 | None = None, squares: Floats32 | None = None) -> None:
        self.weights = np.zeros(SIZE, np.float32) if weights is None else weights
        self.squares = np.zeros(SIZE, np.float32) if squares is None else squares

    def apply(self, contexts: Sequence[Sequence[int]], candidates: Candidates) -> Candidates:
        """Returns corrected candidates, sorted again; the same object if nothing changes.

        Args:
            contexts: the last `SPAN` tokens before each row's candidates.
            candidates: as the draft gave them. Only the first `WIDTH` of each row are corrected.
        """
        rows = np.array(contexts, np.int64)
        shift = self._shift(_places(rows, candidates.tokens[:, :WIDTH]))
        if not shift.any():
            return candidates
        logits, normalizers = candidates.logits.copy(), candidates.normalizers
        best = logits[:, :WIDTH]
        mass = 1 + (np.exp(best - normalizers[:, None]) * np.expm1(shift)).sum(axis=1)
        best += shift
        order = np.argsort(-logits, axis=1, kind="stable")
        lines = np.arange(len(order))[:, None]
        return Candidates(
            candidates.tokens[lines, order],
            logits[lines, order],
            normalizers + np.log(np.maximum(mass, _LEAST_MASS)),
        )

    def learn(self, examples: Examples) -> None:
        """Makes one step towards the target's distribution over the candidates."""
        places = _places(examples.contexts, examples.tokens)
        guess = _softmax(examples.draft + self._shift(places))
        # The gradient of the Kullback-Leibler divergence; all weights of a sum share it.
        gradient = np.broadcast_to((guess - _softmax(examples.target))[:, None], places.shape)
        np.add.at(self.squares, places, gradient * gradient)
        steps = _RATE * gradient / np.sqrt(self.squares[places] + np.float32(_CAUTION))
        np.subtract.at(self.weights, places, steps)

    def divergences(self, examples: Examples) -> tuple[Floats32, Floats32]:
        """Returns how far the draft is from the target, without the correction and with it.

        Returns:
            [n] float32 each: Kullback-Leibler divergence over the candidates, in nats.
        """
        shift = self._shift(_places(examples.contexts, examples.tokens))
        target = _log_softmax(examples.target)
        alone, corrected = (
            (np.exp(target) * (target - _log_softmax(logits))).sum(axis=1)
            for logits in (examples.draft, examples.draft + shift)
        )
        return alone, corrected

    def _shift(self, places: npt.NDArray[np.intp]) -> Floats32:
        """Returns what is added to the logits, [n, K]."""
        shift: Floats32 = self.weights[places].sum(axis=1)
        return np.clip(shift, -_MOST, _MOST)


def _places(
    contexts: npt.NDArray[np.integer[Any]], tokens: npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.intp]:
    """Returns the places of the weights of n-grams that end with each candidate, [n, SPAN, K]."""
    keys = contexts.astype(np.uint64) @ _FACTORS + _FACTORS[-1]  # -1 wraps, which is as good
    mixed = (keys[:, :, None] ^ tokens[:, None, :].astype(np.uint64)) * _MULTIPLIER
    mixed = (mixed ^ (mixed >> _FOLD)) * _MULTIPLIER
    places: npt.NDArray[np.intp] = (mixed >> np.uint64(64 - _BITS)).astype(np.intp)
    return places


def _log_softmax(logits: Floats32) -> Floats32:
    logits = logits - logits.max(axis=1, keepdims=True)
    found: Floats32 = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return found


def _softmax(logits: Floats32) -> Floats32:
    return np.exp(_log_softmax(logits))
