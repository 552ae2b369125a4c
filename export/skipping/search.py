"""Searches for the skip sets with the highest expected tokens per second, by trying them.

Early exits and random sets come first. Then each new set is derived from one of the best so far:
a few consecutive sublayers are left out or added again, or the whole set is shifted. A search that
models the agreement of sets found sets that are 0 to 3 % faster with the same number of trials
(docs/layer-skip.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from edgespec.bundle import SkipScore
from edgespec.export.skipping.costs import Agreements, PassCosts, score
from edgespec.export.skipping.sets import MOST_STAGES, skip_cuts

MOST_SETS = 4
"""Maximum number of skip sets of a bundle."""

_EXITS = 8  # number of early exits to try, spread over the model
_RANDOM_FIRST = 0.3  # share of the evaluations that are random sets
_PARENTS = 3  # number of best sets from which steps are made
_MOST_RUNS = (MOST_STAGES - 1) // 2  # each run of left-out sublayers cuts twice
_LONGEST_TOGGLE = 4  # maximum number of sublayers that a step adds or removes
_SHIFTS = (-2, -1, 1, 2)
_DRAWS = 100  # number of draws without a new set after which the search ends
# A bundle's further sets must differ in draft cost by more than the share _OTHER, reach the share
# _GOOD of the best speed, and slow the best set by at most the share _CUTS_TAKE with their cuts.
_OTHER, _GOOD, _CUTS_TAKE = 0.03, 0.8, 0.02

Skipped = tuple[int, ...]
"""The numbers of the sublayers that a set leaves out, ascending."""


@dataclass(frozen=True)
class Tried:
    """A skip set that was tried.

    Attributes:
        skipped: the sublayers that it leaves out.
        agreements: agreement of its draft with the target.
        score: its expected speed.
    """

    skipped: Skipped
    agreements: Agreements
    score: SkipScore


@dataclass(frozen=True)
class Problem:
    """The search problem.

    Attributes:
        costs: costs of the model's passes.
        engine: name of the engine on which they were measured.
        evaluate: measures the agreement of a set's draft with the target.
        cuts: cuts that the model has anyway.
    """

    costs: PassCosts
    engine: str
    evaluate: Callable[[Skipped], Agreements]
    cuts: frozenset[int] = frozenset()

    def is_exit(self, one: Tried) -> bool:
        """Returns whether the draft consists of the first layers and the head."""
        return one.skipped in exits(self.costs)

    def trial(self, skipped: Skipped) -> Tried:
        """Evaluates a set."""
        agreements = self.evaluate(skipped)
        return Tried(
            skipped, agreements, score(skipped, agreements, self.costs, self.engine, self.cuts)
        )


GoOn = Callable[[int, int], bool]
"""Called with the numbers of sets tried and to try; returns whether to go on."""


def exits(costs: PassCosts) -> list[Skipped]:
    """Returns the early exits of a model, which leave out all layers from one on.

    The shortest draft comes first.
    """
    layout = costs.layout
    firsts = map(layout.first, range(1, layout.layers))
    return [tuple(range(first, layout.head)) for first in firsts]


def search(
    problem: Problem, evaluations: int, seed: int, go_on: GoOn = lambda done, total: True
) -> list[Tried]:
    """Tries skip sets.

    Args:
        problem: the search problem.
        evaluations: maximum number of sets to try. With the same number, seed, costs and
            agreements the same sets are tried.
        seed: seed of random choices.
        go_on: see `GoOn`.

    Returns:
        All sets that were tried, the fastest first; at least one if the model has two layers.
    """
    early, rng = exits(problem.costs), np.random.default_rng(seed)
    if not early:
        return []
    tried: dict[Skipped, Tried] = {}
    places = np.linspace(len(early) - 1, 0, min(_EXITS, len(early))).round().astype(int)
    queue = [early[place] for place in places]
    random = len(queue) + round(_RANDOM_FIRST * evaluations)
    while len(tried) < evaluations:
        steps = len(tried) >= random
        one = queue.pop(0) if queue else _new(problem, tried, steps, rng)
        if one is None:  # nothing is left
            break
        tried[one] = problem.trial(one)
        if not go_on(len(tried), evaluations):
            break
    return ranked(tried.values())


def choose(tried: Sequence[Tried], problem: Problem) -> list[Tried]:
    """Chooses the sets of a bundle: the best, the best early exit, and others worth their cuts.

    If even the best is not faster than plain decoding, only one more is added, since cuts cost.

    Args:
        tried: the sets that were tried, the fastest first.
        problem: the search problem.
    """
    best, early = list(tried[:1]), [each for each in tried if problem.is_exit(each)]
    most = MOST_SETS if best and best[0].score.pays else 2
    for one in [*early[:1], *tried[1:]]:
        if len(best) < most and one not in best and _joins(one, best, problem):
            best.append(one)
    return best


def ranked(tried: Iterable[Tried]) -> list[Tried]:
    """Sorts sets by expected speed, the fastest first."""
    return sorted(tried, key=lambda one: (-one.score.tokens_per_second, one.skipped))


def _joins(one: Tried, chosen: Sequence[Tried], problem: Problem) -> bool:
    """Returns whether to add a set to the chosen ones."""
    best = chosen[0]
    sets = [each.skipped for each in (*chosen, one)]
    cuts = skip_cuts(sets, problem.costs.layout)
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


def _parents(problem: Problem, tried: Iterable[Tried]) -> list[Skipped]:
    """Returns the sets to derive new ones from: the best early exit, and the best others."""
    order = [each.skipped for each in ranked(tried)]
    early = exits(problem.costs)
    others = [each for each in order if each not in early]
    return [*[each for each in order if each in early][:1], *others[:_PARENTS]]


def _new(
    problem: Problem, tried: Mapping[Skipped, Tried], steps: bool, rng: np.random.Generator
) -> Skipped | None:
    """Returns a random step from one of the best sets, or a random set; None if none is new."""
    parents = _parents(problem, tried.values()) if steps else []
    for draw in range(_DRAWS):
        one: Skipped | None = random_set(problem.costs, rng)
        if parents and draw < _DRAWS // 2:
            one = step(problem, parents[int(rng.integers(len(parents)))], rng)
        if one is not None and one not in tried and not problem.costs.layout.bereft(one):
            return one
    return None


def random_set(costs: PassCosts, rng: np.random.Generator) -> Skipped:
    """Returns random runs without the first and last layer, or an early exit if there are none."""
    inner = _inner(costs)
    places = np.arange(inner.start, inner.stop + 1)
    if len(places) < 2:
        early = exits(costs)
        return early[int(rng.integers(len(early)))]
    runs = rng.integers(1, min(_MOST_RUNS, len(places) // 2) + 1)
    borders = np.sort(rng.choice(places, 2 * runs, replace=False)).reshape(-1, 2)
    return tuple(number for start, stop in borders.tolist() for number in range(start, stop))


def step(problem: Problem, skipped: Skipped, rng: np.random.Generator) -> Skipped | None:
    """Returns a random neighbour of a set; None if it has none."""
    found = neighbours(problem, skipped)
    return found[int(rng.integers(len(found)))] if found else None


def neighbours(problem: Problem, skipped: Skipped) -> list[Skipped]:
    """Returns the sets one step away: a few consecutive sublayers toggled, or all shifted."""
    early, inner = exits(problem.costs), _inner(problem.costs)
    if skipped in early:
        place = early.index(skipped)
        return early[max(place - 2, 0) : place] + early[place + 1 : place + 3]
    own, found = set(skipped), list[set[int]]()
    found += [{number + steps for number in own} for steps in _SHIFTS]
    for length in range(1, _LONGEST_TOGGLE + 1):
        for start in range(inner.start, inner.stop - length + 1):
            found.append(own ^ set(range(start, start + length)))
    sets = [tuple(sorted(each)) for each in found if each and each <= set(inner)]
    return [each for each in sets if _runs(each) <= _MOST_RUNS]


def _runs(skipped: Skipped) -> int:
    """Returns the number of runs of consecutive sublayers in a set."""
    return 1 + sum(after - before > 1 for before, after in pairwise(skipped))


def _inner(costs: PassCosts) -> range:
    """Returns the sublayers of all layers but the first and the last."""
    layout = costs.layout
    return range(layout.first(1), layout.first(layout.layers - 1))
