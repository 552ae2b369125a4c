"""How likely drafted tokens are to be accepted: ranked as the target chooses, and then counted.

The target's choice is greedy, or the arg-max of log p + g with noise g keyed by seed and position
(`sampling`). A draft that ranks its tokens by the same rule and noise tends to put the target's
choice first. Unlike the choice, a ranking need not be exact to keep the text exact. It looks only
at each row's likeliest tokens. How often what is ranked so becomes text is counted, which corrects
what the next nodes are worth.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from edgespec.runtime.arrays import Doubles, Floats, Ids, Mask
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.sampling.truncation import likeliest_tokens
from edgespec.runtime.speculation.generation import Generation

_CANDIDATES = 32  # likeliest tokens of a row, those that compete under the target's noise
_SMALL = 8192  # tokens of a vocabulary whose probabilities are summed as a whole
_RIVALS = 8  # best tokens in the softmax that gives a sampled child its value
_OUTSIDE = 1e6  # subtracted from scores of truncated tokens; larger than any noise
_LEAST_VALUE = 1e-12
_DECAY = 0.98  # factor on the counts at each observation: about the last fifty matter
_PRIOR_WEIGHT = 16.0  # initial weight of the prior, in observations


@dataclass(frozen=True, eq=False)
class Candidates:
    """The likeliest tokens after each of n rows.

    Attributes:
        tokens: [n, K] int64, the likeliest first.
        logits: [n, K] float32, not increasing.
        normalizers: [n] float32, log of the sum of exp over the whole vocabulary.
    """

    tokens: Ids
    logits: Floats
    normalizers: Floats

    def rows(self, first: int, end: int) -> Candidates:
        """Returns the candidates of consecutive rows."""
        own = slice(first, end)
        return Candidates(self.tokens[own], self.logits[own], self.normalizers[own])


def likeliest(logits: Floats, sampler: Sampler, width: int, ids: Ids | None = None) -> Candidates:
    """Returns the likeliest tokens of rows.

    The probabilities of large vocabularies leave out all others. What that is off, acceptances
    correct; the whole sum would cost twice as much as the rest.

    Args:
        logits: [n, V] float32.
        sampler: what chooses the tokens that are to be guessed.
        width: least number of tokens of a row, if there are so many.
        ids: [V] tokens that the columns stand for; None: their numbers.
    """
    columns = min(sampler.vocab_size, logits.shape[1])
    small = columns <= _SMALL
    # Under noise the others compete, and their sum stands for that of a large vocabulary.
    count = width if small and sampler.options.temperature == 0 else max(_CANDIDATES, width)
    best = likeliest_tokens(logits, columns, min(count, columns))
    found = logits[np.arange(len(logits))[:, None], best]
    return listed(best, found, ids, logits[:, :columns] if small else None)


def listed(
    tokens: Ids, logits: Floats, ids: Ids | None = None, whole: Floats | None = None
) -> Candidates:
    """Returns candidates, the likeliest first; see `likeliest`.

    Args:
        tokens: [n, K] columns of the logits.
        logits: [n, K] float32, those of these columns.
        ids: see `likeliest`.
        whole: [n, V] logits of all tokens that probabilities are shared by; None: those above.
    """
    summed = logits if whole is None else whole
    total = np.log(np.exp(summed - logits[:, :1]).sum(axis=1)) + logits[:, 0]
    return Candidates(tokens if ids is None else ids[tokens], logits, total)


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
    if sampler.excludes(position):
        perturbed -= _top_choices(candidates, outside, sampler.options) * _OUTSIDE
    return _by_lead(candidates.tokens, perturbed, k)


def _greedy(candidates: Candidates, k: int) -> list[Ranking]:
    # Plain Python is faster than numpy on a few small lists.
    ids = candidates.tokens[:, :k].tolist()
    logits = candidates.logits[:, :k].tolist()
    return [
        Ranking(tokens, [max(_LEAST_VALUE, math.exp(min(x - total, 0.0))) for x in row])
        for tokens, row, total in zip(ids, logits, candidates.normalizers.tolist(), strict=True)
    ]


def _by_lead(tokens: Ids, scores: Doubles, k: int) -> list[Ranking]:
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


def _outside_truncation(scores: Floats, options: SamplingOptions) -> Mask | None:
    """Returns which candidates after the first the truncation removes.

    The candidates stand for the whole distribution, since a draft has nothing to propose beyond
    them.

    Returns:
        [n, K - 1] bool; None if the truncation can remove none.
    """
    outside = None
    if options.mirostat:
        return None
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


def _top_choices(candidates: Candidates, outside: Mask | None, options: SamplingOptions) -> Mask:
    """Returns which candidates XTC leaves out of those within the truncation, [n, K] bool."""
    floor = math.log(options.xtc_threshold) if options.xtc_threshold else -math.inf
    above = candidates.logits - candidates.normalizers[:, None] >= floor
    if outside is not None:
        above[:, 1:] &= ~outside
    if options.xtc_threshold > 0.5:
        above[:] = False
    above[:, :-1] &= above[:, 1:]  # the likelihood falls, so the last one has none behind it
    above[:, -1] = False
    return above


class Expectation(Protocol):
    """What a source expects next, as a text goes on token by token."""

    def edges(self) -> Iterable[tuple[int, int]]:
        """Returns the tokens that may be next, each with the cell of its edge."""

    def follow(self, token: int) -> bool:
        """Goes on by a token; returns whether the source has looked at what may follow it."""


class AcceptanceTable:
    """Estimated acceptance of edges, grouped into cells of edges that look alike to the source.

    An estimate starts from the source's own estimate (the prior) and moves to the decayed
    frequency, as the posterior mean under a Beta prior does. The weight of the prior decays like
    any observation. Most cells are seen only a few times in a text, where the prior is the better
    estimate, but it must not hold back cells with many observations. Only edges whose parent was
    reached count.
    """

    def __init__(self) -> None:
        # By cell, the decayed numbers of accepted edges and of seen edges.
        self._cells: dict[int, tuple[float, float]] = {}

    def acceptance(self, cell: int, prior: float) -> float:
        """Returns the probability that an edge is accepted if its parent is.

        Args:
            cell: number of the cell that the edge belongs to.
            prior: the source's own estimate, in [0, 1].
        """
        accepted, seen = self._cells.get(cell, (0.0, 0.0))
        # `seen` is a geometric sum, so this is _DECAY ** observations.
        weight = _PRIOR_WEIGHT * max(0.0, 1 - (1 - _DECAY) * seen)
        return (accepted + weight * prior) / (seen + weight)

    def count(self, tokens: Iterable[int], expected: Expectation) -> None:
        """Counts the edges along tokens that the target has chosen, verified or not.

        Args:
            tokens: the tokens, in their order.
            expected: what the source has expected before the first of them. It is followed up to
                the last one, or to where the source has looked no further.
        """
        for token in tokens:
            for candidate, cell in expected.edges():
                self._observe(cell, candidate == token)
            if not expected.follow(token):
                return

    def _observe(self, cell: int, accepted: bool) -> None:
        before, seen = self._cells.get(cell, (0.0, 0.0))
        self._cells[cell] = (before * _DECAY + accepted, seen * _DECAY + 1)


class Acceptances:
    """The acceptances of a source: of greedy tokens and of sampled ones, which differ."""

    def __init__(self) -> None:
        self._tables = AcceptanceTable(), AcceptanceTable()

    def of(self, generation: Generation) -> AcceptanceTable:
        """Returns the table of a generation's way to choose tokens."""
        return self._tables[generation.is_sampled]


class Bins:
    """Assigns numbers to a few bins, so that similar edges share a cell.

    Args:
        borders: borders between the bins, ascending; a number on a border belongs to the bin above.
    """

    def __init__(self, borders: Sequence[float]) -> None:
        self._borders = list(borders)

    def __call__(self, number: float) -> int:
        """Returns the index of the bin, from 0 to the number of borders."""
        return bisect_right(self._borders, number)


_VALUES = Bins((0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97))
_RANKS = 4  # ranks with cells of their own; higher ones share the last
_DEPTHS = 4  # depths with cells of their own; larger ones share the last


def edge_cell(value: float, rank: int, depth: int) -> int:
    """Returns the cell of an edge of a model's tree.

    Args:
        value: probability that the model gives it, in (0, 1].
        rank: number of siblings that are likelier.
        depth: number of drafted tokens before it.
    """
    row = min(depth, _DEPTHS - 1) * _RANKS
    return _VALUES(value) * _RANKS * _DEPTHS + row + min(rank, _RANKS - 1)
