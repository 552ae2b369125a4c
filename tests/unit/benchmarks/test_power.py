"""What a token costs, at full speed and at reading speed."""

from __future__ import annotations

import importlib
import sys

import pytest
from checkout import BENCHMARKS

from edgespec import LLM

sys.path.append(str(BENCHMARKS))

power = importlib.import_module("power")


@pytest.fixture
def slept(monkeypatch):
    slept = []
    monkeypatch.setattr(power.time, "sleep", slept.append)
    return slept


def test_a_reader_is_waited_for_between_passes(slept):
    with LLM(threads=1) as llm:
        cost = power.cost(llm, "def gcd(a, b):", "none", 1, 6)
        assert len(slept) == 6
        assert cost.rate > 0
        assert cost.cpu_ms > 0
        slept.clear()
        power.cost(llm, "def gcd(a, b):", "none", 0, 6)
        assert slept == []


def test_joules_are_those_of_tokens_behind_the_first(monkeypatch):
    asked = []
    monkeypatch.setattr(power, "energy", lambda: asked.append(1) or {})
    monkeypatch.setattr(power, "joules_since", lambda _: 10.0)
    with LLM(threads=1) as llm:
        cost = power.cost(llm, "def gcd(a, b):", "none", 0, 6)
    assert cost.joules == 2.0
    assert len(asked) == 2
    assert power._middle([cost, cost])[2] == "2.00"
    assert power._middle([power.Cost(1.0, 2.0, None)]) == ("1.0", "2.0", "-")
