"""Acceptance, counted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.calibration import Calibration, Scale


def test_without_a_count_the_sources_word_holds():
    assert Calibration().acceptance(3, 0.37) == pytest.approx(0.37)


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.95])
def test_counts_overrule_a_wrong_word(rate):
    calibration, rng = Calibration(), random.Random(1)
    found = []
    for _ in range(2000):
        calibration.observe(1, rng.random() < rate)
        found.append(calibration.acceptance(1, 1 - rate))
    assert sum(found[200:]) / len(found[200:]) == pytest.approx(rate, abs=0.1)
    assert calibration.acceptance(2, 0.5) == 0.5  # another cell knows nothing of it


def test_the_word_guides_first_and_is_forgotten():
    calibration, apart = Calibration(), []
    for seen in range(400):
        calibration.observe(1, seen % 2 == 0)
        apart.append(calibration.acceptance(1, 1) - calibration.acceptance(1, 0))
    assert apart[3] > 0.75  # four observations say little
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] < 0.001


def test_what_changed_lately_counts():
    calibration = Calibration()
    for _ in range(300):
        calibration.observe(1, True)
    assert calibration.acceptance(1, 0.5) > 0.9
    for _ in range(100):
        calibration.observe(1, False)
    assert calibration.acceptance(1, 0.5) < 0.2


@given(st.lists(st.booleans()), st.floats(0, 1))
def test_an_estimate_is_a_probability(seen, word):
    calibration = Calibration()
    for accepted in seen:
        calibration.observe(0, accepted)
    assert 0 <= calibration.acceptance(0, word) <= 1


def test_a_scale():
    scale = Scale((0.5, 0.9))
    assert [scale(number) for number in (0, 0.49, 0.5, 0.89, 0.9, 1)] == [0, 0, 1, 1, 2, 2]
