"""Guesses of stated quality, which benchmarks put in the place of a draft model's own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from pairs import ENGINES

from edgespec.runtime.drafters import ModelDrafter, TreeBudget
from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
guesses = importlib.import_module("guesses")

TEXT = [1 + 7 * n % 300 for n in range(160)]
CHAIN = TreeBudget(4, 4, 1)


@pytest.fixture
def drafter(pairs):
    """By the calls of a model that knows 100 positions."""

    def make(acceptance):
        text = guesses.GuessedText(TEXT, acceptance)
        model = pairs.llm("stranger", ENGINES[0], "model")._loaded["draft"].model
        made = ModelDrafter(guesses.GuessedCalls(Runner(model), text), Calibration())
        made.begin(TEXT[:20], Sampler(SamplingOptions(), text.vocab_size))
        return made

    return make


@pytest.mark.parametrize("length", [20, 98, 99, 150])
def test_guesses_that_are_always_right_are_the_text(drafter, length):
    tokens = drafter(0.999999).draft(TEXT[:length], CHAIN).tokens
    assert tokens == TEXT[length : length + len(tokens)]
    assert tokens


def test_as_many_first_guesses_are_right_as_is_stated(drafter):
    sometimes = drafter(0.75)
    found = [sometimes.draft(TEXT[:n], CHAIN).tokens[0] == TEXT[n] for n in range(21, 160)]
    assert sum(found) / len(found) == pytest.approx(0.75, abs=0.1)


def test_guesses_behind_the_end_of_the_text_are_wrong(drafter):
    tokens = drafter(0.999999).draft(TEXT[:-2], CHAIN).tokens
    assert tokens[:2] == TEXT[-2:]
    assert not set(tokens[2:]) & set(TEXT)
