"""Searches for the skip sets that promise most tokens per second.

What a set agrees with the target is expensive to know and learned (`DamageModel`); what it costs is
known at once (`PassCosts`). Every step asks one opinion of the first, a sample of the posterior
(Thompson, 1933) or every third time its mean, and tries the set that is best by it, found by local
search. At last it looks for companions of the best: sets whose cuts the model can have as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgespec.bundle import SkipScore
from edgespec.export.skipping.costs import (
    CHAINS,
    Agreements,
    Bits,
    Floats,
    PassCosts,
    as_bits,
    score,
    tokens_per_round,
)
from edgespec.export.skipping.sets import MOST_STAGES, skip_cuts
from edgespec.export.skipping.space import SkipSpace
from edgespec.export.skipping.surrogate import Damage, DamageModel

MOST_SETS = 4
"""That a bundle gets."""

_FIRST, _COMPANIONS = 0.2, 0.15  # shares of the evaluations before and after the guided ones
_FEWEST_FIRST = 6
_EXITS_FIRST = (0.5, 0.8)  # of the layers, where early exits are tried before anything is known
_MEAN_EVERY = 3
_BEST_STARTS, _RANDOM_STARTS = 4, 4  # of a local search
_MOST_STEPS = 40
_FAULT = 0.5
_LUCKY = 0.3  # agreement from which on a set tells how disagreements cluster
# What a bundle's further sets must be: other in cost, not much worse, and cheap in cuts.
_OTHER, _GOOD, _CUTS_TAKE = 0.03, 0.8, 0.02


@dataclass(frozen=True)
class Tried:
    """A set that was evaluated."""

    skipped: tuple[int, ...]
    agreements: Agreements
    score: SkipScore


@dataclass(frozen=True)
class Problem:
    """What is searched.

    Attributes:
        costs: of the model's passes.
        engine: on which they were measured.
        evaluate: agreements of a set's draft with the target.
        cuts: that the model has anyway.
    """

    costs: PassCosts
    engine: str
    evaluate: Callable[[tuple[int, ...]], Agreements]
    cuts: frozenset[int] = frozenset()

    def is_exit(self, one: Tried) -> bool:
        """Whether the draft is the first layers and the head."""
        return one.skipped[0] % 2 == 0 and one.skipped == tuple(
            range(one.skipped[0], 2 * self.costs.layers)
        )

    def trial(self, skipped: tuple[int, ...]) -> Tried:
        """Evaluate a set."""
        agreements = self.evaluate(skipped)
        return Tried(
            skipped, agreements, score(skipped, agreements, self.costs, self.engine, self.cuts)
        )


GoOn = Callable[[int, int], bool]
"""Is told how many sets were tried and how many will be; says whether there is time for more."""


def search(
    problem: Problem, evaluations: int, seed: int, go_on: GoOn = lambda done, total: True
) -> list[Tried]:
    """Try sets.

    Args:
        problem: see there.
        evaluations: sets to try at most. With the same number, seed, costs and agreements the
            same sets are tried.
        seed: of everything random.
        go_on: see `GoOn`.

    Returns:
        All that were tried, the most promising first; at least one if the model has two layers.
    """
    if problem.costs.layers < 2:
        return []
    run = _Run(problem, np.random.default_rng(seed))
    space, first = run.space, max(_FEWEST_FIRST, round(_FIRST * evaluations))
    starts = space.exits[[round(share * (len(space.exits) - 1)) for share in _EXITS_FIRST]]
    queue = [*starts, *space.random(run.rng, first - len(starts))]
    guided = evaluations - round(_COMPANIONS * evaluations)
    while len(run.tried) < evaluations:
        one = queue.pop(0) if queue else run.propose(companion=len(run.tried) >= guided)
        if one is None:  # nothing is left
            break
        if run.add(one) and not go_on(len(run.tried), evaluations):
            break
    return ranked(run.tried.values())


def choose(tried: Sequence[Tried], problem: Problem) -> list[Tried]:
    """The sets for a bundle: the best, the best early exit, and others that are worth their cuts.

    Where not even the best promises more than plain decoding, one more is enough: cuts cost.

    Args:
        tried: the most promising first.
        problem: in which they were tried.
    """
    best, exits = list(tried[:1]), [each for each in tried if problem.is_exit(each)]
    most = MOST_SETS if best and best[0].score.pays else 2
    for one in [*exits[:1], *tried[1:]]:
        if len(best) < most and one not in best and _joins(one, best, problem):
            best.append(one)
    return best


def ranked(tried: Iterable[Tried]) -> list[Tried]:
    """The most promising first."""
    return sorted(tried, key=lambda one: (-one.score.tokens_per_second, one.skipped))


def _joins(one: Tried, chosen: Sequence[Tried], problem: Problem) -> bool:
    """Whether a bundle that has the chosen ones should have this one too."""
    best = chosen[0]
    sets = [each.skipped for each in (*chosen, one)]
    cuts = skip_cuts(sets, problem.costs.layers)
    if len(cuts) + 1 > MOST_STAGES:
        return False
    if len(chosen) == 1 and problem.is_exit(one):
        return True
    other = all(
        abs(one.score.draft_cost - each.score.draft_cost) > _OTHER * each.score.draft_cost
        for each in chosen
    )
    good = one.score.tokens_per_second >= _GOOD * best.score.tokens_per_second
    now = score(best.skipped, best.agreements, problem.costs, problem.engine, problem.cuts | cuts)
    cheap = now.tokens_per_second >= (1 - _CUTS_TAKE) * best.score.tokens_per_second
    return other and (len(chosen) == 1 or (good and cheap))


@dataclass
class _Run:
    """One search: what was tried, and what that tells."""

    problem: Problem
    rng: np.random.Generator
    tried: dict[tuple[int, ...], Tried] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.space = SkipSpace(self.problem.costs.layers)
        self._proposals = 0

    def add(self, one: Bits) -> bool:
        """Try a set; False if it was tried before."""
        key = _key(one)
        if key in self.tried:
            return False
        self.tried[key] = self.problem.trial(key)
        return True

    def propose(self, companion: bool) -> Bits | None:
        """The set to try next; None if there is none left.

        Args:
            companion: must fit the cuts of the best.
        """
        known = list(self.tried.values())
        bits = as_bits([each.skipped for each in known], self.problem.costs.layers)
        model = DamageModel(bits, np.array([each.agreements.share for each in known]))
        self._proposals += 1
        by_mean = companion or self._proposals % _MEAN_EVERY == 0
        opinion = model.mean() if by_mean else model.sample(self.rng)
        promise = _Promise(self.problem, opinion, _clustering(known))
        if companion:
            found = self._climb(replace(promise, beside=ranked(known)[0]))
            if found is not None:
                return found
        return self._climb(promise)

    def _climb(self, promise: _Promise) -> Bits | None:
        """The most promising set that was not tried, by local searches from several sets."""
        starts = [each.skipped for each in ranked(self.tried.values())[:_BEST_STARTS]]
        near = as_bits(starts, self.problem.costs.layers)
        far = self.space.random(self.rng, _RANDOM_STARTS)
        best: tuple[float, Bits | None] = (-np.inf, None)
        for sets in (self.space.exits, far, *(one[None] for one in (*near, *far))):
            at, current = -np.inf, sets
            for _ in range(_MOST_STEPS):
                values, allowed = promise(current)
                for index in np.argsort(-values, kind="stable"):
                    if values[index] <= best[0]:
                        break
                    if allowed[index] and _key(current[index]) not in self.tried:
                        best = (values[index], current[index])
                        break
                if values.max() <= at:
                    break
                at, top = values.max(), current[values.argmax()]
                current = self.space.neighbours(top)
        return best[1]


@dataclass(frozen=True)
class _Promise:
    """Tokens per second of sets, if one opinion of their damage is right.

    Attributes:
        beside: only sets that join this one in a bundle are allowed.
    """

    problem: Problem
    opinion: Damage
    clustering: Floats
    beside: Tried | None = None

    def __call__(self, sets: Bits) -> tuple[Floats, Bits]:
        """[sets] what each promises, and whether it is allowed.

        What is not promises less, by how far it is from being so: a search finds its way.
        """
        tokens = _by_chance(self.opinion.agreement(sets)) * self.clustering
        seconds = self.problem.costs.rounds(sets, self.problem.cuts)
        values: Floats = (tokens / seconds).max(1)
        faults = np.zeros(len(sets), np.int64)
        if self.beside is not None:
            best, costs = self.beside, self.problem.costs
            share = costs.draft(sets) / costs.draft(as_bits([best.skipped], costs.layers))
            faults += abs(share - 1) <= _OTHER
            for index, row in enumerate(sets):
                cuts = skip_cuts([best.skipped, _key(row)], costs.layers)
                faults[index] += max(len(cuts) + 1 - MOST_STAGES, 0)
        return values * _FAULT**faults, faults == 0


def _clustering(known: Sequence[Tried]) -> Floats:
    """[chains] how many times more tokens rounds brought than agreements by chance would."""
    lucky = [each for each in known if each.agreements.share >= _LUCKY] or known[:1]
    chance = _by_chance(np.array([each.agreements.share for each in lucky]))
    seen = [[tokens_per_round(each.agreements.all, chain) for chain in CHAINS] for each in lucky]
    found: Floats = np.exp(np.log(np.array(seen) / chance).mean(0))
    return found


def _by_chance(agreement: Floats) -> Floats:
    """[sets, chains] tokens of a round, were every drafted token right with this probability."""
    powers = agreement[:, None] ** np.arange(CHAINS[-1] + 1)
    found: Floats = np.cumsum(powers, 1)[:, 1:]
    return found


def _key(one: Bits) -> tuple[int, ...]:
    return tuple(map(int, np.flatnonzero(one)))
