"""Tests of acceptance statistics."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from candidates import Trusting
from hypothesis import given
from hypothesis import strategies as st
from pairs import ENGINES

from edgespec.runtime.drafters import ModelCalls, ModelDrafter, TreeBudget
from edgespec.runtime.drafters.acceptance import Bins, Calibration
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions


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
    scale = Bins((0.5, 0.9))
    assert [scale(number) for number in (0, 0.49, 0.5, 0.89, 0.9, 1)] == [0, 0, 1, 1, 2, 2]


def test_a_models_edges_are_counted_with_those_of_like_value(pairs):
    """Whatever their rank and depth, edges of one cell have similar values."""
    words = defaultdict(list)

    class Noting(Trusting):
        def acceptance(self, cell, word):
            words[cell].append(word)
            return super().acceptance(cell, word)

    model = pairs.llm("llama", ENGINES[0], "model")._loaded["draft"].model
    drafter = ModelDrafter(ModelCalls(Runner(model)), Noting())
    for token in range(1, 40):
        drafter.begin([token, 7], Sampler(SamplingOptions(), 331))
        drafter.draft([token, 7], TreeBudget(30, 6, 6))
    assert len(words) > 40
    assert max(max(each) - min(each) for each in words.values()) <= 0.15
