"""Ranks the best children of each row under the target's own noise.

The target's choice is greedy, or the arg-max of log p + g with noise g keyed by seed and position
(`sampling`). A draft that ranks its tokens by the same rule and noise tends to put the target's
choice first. Unlike the choice, a ranking need not be exact to keep the text exact. It looks only
at each row's likeliest tokens, which the draft's graph has picked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.sampler import Sampler

_RIVALS = 8  # best tokens in the softmax that gives a sampled child its value
_OUTSIDE = 1e6  # subtracted from scores of truncated tokens; larger than any noise
_LEAST_VALUE = 1e-12

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The likeliest tokens after each of n rows.

    Attributes:
        tokens: [n, K] int64, the likeliest first.
        logits: [n, K] float32, not increasing.
        normalizers: [n] float32, log of the sum of exp over the whole vocabulary.
    """

    tokens: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]
    normalizers: npt.NDArray[np.float32]

    def row(self, number: int) -> Candidates:
        """Returns the candidates of one row."""
        one = slice(number, number + 1)
        return Candidates(self.tokens[one], self.logits[one], self.normalizers[one])


class Ranking(NamedTuple):
    """Children of one row, best first.

    Attributes:
        tokens: distinct ids.
        values: in (0, 1], not increasing: how likely the target is to agree. For greedy text these
            are probabilities. For sampled text they are a softmax over the perturbed scores of the
            best tokens, because under shared noise the lead over the rivals, not the probability,
            predicts agreement.
    """

    tokens: list[int]
    values: list[float]


def rank(
    sampler: Sampler,
    candidates: Candidates,
    position: int,
    k: int,
) -> list[Ranking]:
    """Ranks the best `k` tokens of rows that stand at the same position of the text.

    Where fewer than k survive the truncation, the others follow in the order of their own scores.

    Args:
        sampler: the target's sampler, so that temperature, truncation and noise are the same.
        candidates: candidates of the n rows.
        position: as for `Sampler.choose`; the same for all rows.
        k: at least 1; the result has fewer where there are fewer candidates.

    Returns:
        [n] rankings.
    """
    if sampler.options.temperature == 0:
        return _greedy(candidates, k)
    scores = candidates.logits - candidates.logits[:, :1]
    if sampler.options.temperature != 1:
        scores /= sampler.options.temperature
    perturbed = sampler.noise.for_tokens(position, candidates.tokens)
    perturbed += scores
    outside = _outside_truncation(scores, sampler.options)
    if outside is not None:
        behind = perturbed[:, 1:]
        behind -= outside * _OUTSIDE
    return _by_lead(candidates.tokens, perturbed, k)


def _greedy(candidates: Candidates, k: int) -> list[Ranking]:
    # Plain Python is faster than numpy on a few small lists.
    ids = candidates.tokens[:, :k].tolist()
    logits = candidates.logits[:, :k].tolist()
    return [
        Ranking(tokens, [max(_LEAST_VALUE, math.exp(min(x - total, 0.0))) for x in row])
        for tokens, row, total in zip(ids, logits, candidates.normalizers.tolist(), strict=True)
    ]


def _by_lead(tokens: npt.NDArray[np.int64], scores: Scores, k: int) -> list[Ranking]:
    """Returns rankings from perturbed scores; both arrays are [n, K]."""
    count = max(k, _RIVALS)
    # Sorting a short row whole costs less than selecting from it and gathering the selection.
    best = scores.argsort(axis=1)[:, : -count - 1 : -1].tolist()
    # cheaper than numpy for single items
    score_at = scores.data
    token_at = tokens.data
    rankings = []
    for row, columns in enumerate(best):
        lead = score_at[row, columns[0]]
        weights = [math.exp(score_at[row, column] - lead) for column in columns]
        total = sum(weights)
        rankings.append(
            Ranking(
                [token_at[row, column] for column in columns[:k]],
                [max(_LEAST_VALUE, weight / total) for weight in weights[:k]],
            )
        )
    return rankings


def _outside_truncation(
    scores: npt.NDArray[np.float32], options: SamplingOptions
) -> npt.NDArray[np.bool_] | None:
    """Returns which candidates after the first the truncation removes.

    The candidates stand for the whole distribution, since a draft has nothing to propose beyond
    them.

    Returns:
        [n, K - 1] bool; None if the truncation can remove none.
    """
    outside = None
    if 0 < options.top_k < scores.shape[1]:
        outside = scores[:, 1:] < scores[:, options.top_k - 1 : options.top_k]
    if options.top_p < 1:
        weights = np.exp(scores)
        if outside is not None:
            weights[:, 1:][outside] = 0
        mass = np.add.accumulate(weights, axis=1)
        beyond = mass[:, :-1] >= options.top_p * mass[:, -1:]
        outside = beyond if outside is None else outside | beyond
    if options.min_p > 0:
        beyond = scores[:, 1:] < math.log(options.min_p)
        outside = beyond if outside is None else outside | beyond
    return outside
