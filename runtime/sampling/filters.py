"""Which tokens survive truncations that look at the whole distribution, one after the other.

They are those of llama.cpp in its order: top-n-sigma, top-k, typical, top-p, min-p, and XTC, which
leaves out top choices (p-e-w, 2024). Typical and XTC look at probabilities before the temperature,
as there; top-p and min-p at those behind it, as everywhere here. All indices are ascending.
"""

from __future__ import annotations

import math

import numpy as np

from edgespec.runtime.arrays import Doubles, Floats, Ids
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.truncation import Nucleus, largest_indices

_HEAD = 64  # number of tokens that are sorted first
_NEVER = -1e29  # logits below are of tokens that must not be chosen


def survivors(logits: Floats, options: SamplingOptions, excludes: bool) -> Ids:
    """Returns which tokens may be sampled, at least one.

    Args:
        logits: [n] float32.
        options: truncation and temperature.
        excludes: whether the top choices are left out.
    """
    kept: Ids = np.arange(logits.size)
    if options.top_n_sigma:
        kept = near_best(logits, options.top_n_sigma)
    if options.top_k:
        kept = kept[largest_indices(logits[kept], options.top_k)]
    if options.typical_p < 1:
        kept = kept[typical(logits[kept], options.typical_p)]
    if options.top_p < 1:
        left = logits[kept]
        nucleus = Nucleus(left, options.temperature, options.top_p)
        inside = nucleus.members(largest_indices(left, _HEAD))
        if inside is None:
            inside = nucleus.members(np.arange(left.size))
        kept = kept if inside is None else kept[inside]
    if options.min_p:
        left = logits[kept]
        kept = kept[left >= left.max() + options.temperature * math.log(options.min_p)]
    if excludes:
        kept = kept[without_top_choices(logits[kept], options.xtc_threshold)]
    return kept


def near_best(logits: Floats, deviations: float) -> Ids:
    """Returns tokens whose logits are at most so many standard deviations below the best."""
    peak = float(logits.max())
    values = logits[logits >= min(_NEVER, peak)].astype(np.float64)
    return np.flatnonzero(logits >= peak - deviations * values.std())


def typical(logits: Floats, mass: float) -> Ids:
    """Returns the tokens whose surprise is the nearest to the expected one, of some probability.

    Args:
        logits: [n] float32.
        mass: from 0, where one token is left, to below 1.
    """
    surprise = -_log_probabilities(logits)
    probabilities = np.exp(-surprise)
    expected = float((probabilities * np.where(probabilities > 0, surprise, 0)).sum())
    closeness = -np.abs(surprise - expected)
    for count in (_HEAD, logits.size):
        nearest = largest_indices(closeness, count)
        order = nearest[np.argsort(-closeness[nearest], kind="stable")]
        reached = int(np.searchsorted(probabilities[order].cumsum(), mass, side="right"))
        if reached < order.size:
            break
    return np.sort(order[: reached + 1])


def without_top_choices(logits: Floats, threshold: float) -> Ids:
    """Returns all tokens but those that reach a probability, of which the least likely stays."""
    floor = math.log(threshold) if threshold else -math.inf
    above = np.flatnonzero(_log_probabilities(logits) >= floor)
    if threshold > 0.5 or above.size < 2:
        return np.arange(logits.size)
    # Of equal ones the last stays, as if they were ordered by likelihood, then by id.
    stays = above[above.size - 1 - int(logits[above][::-1].argmin())]
    return np.delete(np.arange(logits.size), above[above != stays])


def _log_probabilities(logits: Floats) -> Doubles:
    shifted = logits - np.float64(logits.max())
    found: Doubles = shifted - math.log(float(np.exp(shifted).sum()))
    return found
