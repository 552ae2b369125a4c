"""Planning judged by given costs: nothing but these decides, and they are what is counted."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgespec.measuring.prompts import PYTHON
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.exactness import Exactness

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
planning = importlib.import_module("planning")

STEEP, FLAT = {1: 10.0, 2: 100.0, 4: 300.0, 16: 1500.0}, {1: 10.0, 128: 11.0}


@pytest.fixture
def rows_found(monkeypatch, own_cache):
    """Have it be found here that a row is alike in calls of any number of rows, or of even ones."""

    def find(single):
        found = Exactness(exact=True, single=single)
        monkeypatch.setattr(exactness, "measure", lambda _: found)

    return find


def judged(target):
    machine = planning.Machine("onnxruntime:cpu", target, {1: 1.0, 16: 2.0})
    arguments = SimpleNamespace(bundle=None, threads=1, new_tokens=24, temperatures=[0.0, 0.8])
    return planning._judge("a machine", machine, PYTHON[:2], arguments)


def test_where_each_row_costs_more_than_a_token_plain_decoding_is_all_there_is(rows_found):
    rows_found(single=True)
    for outcome in judged(STEEP):
        assert (outcome.tokens, outcome.nodes, outcome.pass_ms) == (1, 0, 10)
        assert outcome.draft_ms > 0  # to find that out
        assert outcome.to_plain == pytest.approx(10 / (10 + outcome.draft_ms), abs=0.01)


def test_where_calls_have_even_rows_the_second_is_drafted_for(rows_found):
    rows_found(single=False)
    for outcome in judged({1: 10.0, 2: 10.0, 4: 300.0, 16: 1500.0}):
        assert 0.5 < outcome.nodes <= 1
        assert outcome.pass_ms == 10
        assert outcome.tokens > 1


def test_where_rows_are_nearly_free_trees_are_drafted_and_every_call_is_counted():
    outcomes = judged(FLAT)
    for outcome in outcomes:
        assert outcome.tokens > 1.5
        assert 10 < outcome.pass_ms <= 11.1
        seconds = (outcome.pass_ms + outcome.draft_ms) / 1e3
        assert outcome.tokens_per_second == pytest.approx(outcome.tokens / seconds, rel=0.02)
    assert judged(FLAT) == outcomes  # whatever else the machine does
