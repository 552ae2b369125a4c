"""Vocabularies to draw from, and a test whether draws fit a distribution."""

from __future__ import annotations

import math

import numpy as np

SMALL = 3000  # the noise of the whole vocabulary is made at once
LARGE = 40_000  # above every threshold between direct and short-listed paths


def chi_squared_fits(observed, expected):
    """Whether a chi-squared statistic is below its 99.99 % quantile (Wilson and Hilferty, 1931)."""
    observed = np.asarray(observed, float).ravel()
    expected = np.asarray(expected, float).ravel()
    assert expected.min() >= 5
    assert math.isclose(observed.sum(), expected.sum(), rel_tol=1e-9)
    freedom = observed.size - 1
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3
    return ((observed - expected) ** 2 / expected).sum() < quantile
