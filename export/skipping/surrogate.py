"""What sets not yet tried would agree, learned from those that were.

Bayesian linear regression of the damage, -log(agreement), on the sublayers left out and on pairs
of them, as in BOCS (Baptista and Poloczek, 2018). Damage adds up: with independent sublayers the
probabilities of staying right multiply. Pairs tell where that is not so.

Weights have normal priors, those of sublayers around a mean of their own (a sublayer less costs
something) and those of pairs around 0. Variances are those of the largest marginal likelihood.
Everything is computed with matrices of the size of the sets tried, never of the number of pairs,
and samples of the weights come by Matheron's rule (Journel and Huijbregts, 1978): a sample of the
prior, corrected by what it gets wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from edgespec.export.skipping.costs import Bits, Floats

# Below this a draft is useless, whatever it agrees exactly: logarithms would run away.
_LEAST_AGREEMENT = 0.05
# Standard deviations tried: of a pair's weight and of the noise, to that of a sublayer's weight.
_PAIRS = (0.01, 0.05, 0.2)
_NOISES = (0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Damage:
    """One opinion of what leaving out costs.

    Attributes:
        single: [width] of each sublayer.
        pairs: [width, width] of two together, symmetric, the diagonal 0.
    """

    single: Floats
    pairs: Floats

    def agreement(self, sets: Bits) -> Floats:
        """[sets] expected, 0 to 1."""
        x = sets.astype(np.float64)
        damage = x @ self.single + ((x @ self.pairs) * x).sum(1) / 2
        found: Floats = np.exp(-np.maximum(damage, 0))
        return found


class DamageModel:
    """The posterior.

    Args:
        sets: [n, width] tried.
        agreements: [n] of each.
    """

    def __init__(self, sets: Bits, agreements: Floats) -> None:
        self._x = sets.astype(np.float64)
        clipped = np.clip(agreements, _LEAST_AGREEMENT, 1)
        self._damage: Floats = -np.log(clipped)
        # Of a logarithm of a share, up to a factor; the second term stands for what is not linear.
        self._spread = (1 - clipped) / clipped + 0.1
        fits = [self._fit(pair, noise) for pair, noise in product(_PAIRS, _NOISES)]
        _, self._pair, self._noise, self._mean, self._scale = max(fits)
        self._inverse = np.linalg.inv(self._covariance(self._pair, self._noise))

    def mean(self) -> Damage:
        """The likeliest weights."""
        width = self._x.shape[1]
        return self._corrected(np.zeros(width), np.zeros((width, width)), np.zeros(len(self._x)))

    def sample(self, rng: np.random.Generator) -> Damage:
        """Weights drawn from the posterior."""
        width = self._x.shape[1]
        upper = np.triu(rng.standard_normal((width, width)), 1) * self._pair
        noise = rng.standard_normal(len(self._x)) * self._noise * np.sqrt(self._spread)
        return self._corrected(
            np.asarray(self._scale * rng.standard_normal(width)),
            self._scale * (upper + upper.T),
            self._scale * noise,
        )

    def _corrected(self, single: Floats, pairs: Floats, noise: Floats) -> Damage:
        """These weights, moved to where they explain what was seen."""
        x = self._x
        prior = x @ (single + self._mean) + ((x @ pairs) * x).sum(1) / 2 + noise
        wrong = self._inverse @ (self._damage - prior)
        moved = self._pair**2 * (x.T * wrong) @ x
        np.fill_diagonal(moved, 0)
        return Damage(single + self._mean + x.T @ wrong, pairs + moved)

    def _covariance(self, pair: float, noise: float) -> Floats:
        """[n, n] of what is seen, for sublayers' weights of variance 1."""
        common = self._x @ self._x.T
        found: Floats = common + pair**2 * (common**2 - common) / 2
        return found + noise**2 * np.diag(self._spread)

    def _fit(self, pair: float, noise: float) -> tuple[float, float, float, float, float]:
        """Log likelihood, these two, and the mean and scale of weights that maximize it."""
        lower = np.linalg.cholesky(self._covariance(pair, noise))
        count = np.linalg.solve(lower, self._x.sum(1))
        seen = np.linalg.solve(lower, self._damage)
        mean = max(float(count @ seen / (count @ count)), 0.0)
        scale = max(float(np.mean((seen - mean * count) ** 2)) ** 0.5, 1e-6)
        likelihood = -len(seen) * np.log(scale) - np.log(np.diag(lower)).sum()
        return float(likelihood), pair, noise, mean, scale
