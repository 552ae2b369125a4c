"""What the benchmarks of a pass measure: engines by name, behind texts of several lengths."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from edgespec.models.embedded import BUNDLE
from edgespec.runtime.engines import CPU_ENGINES
from edgespec.runtime.execution.runner import Runner

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
verification_cost = importlib.import_module("verification_cost")

ARGUMENTS = ["verification_cost.py", str(BUNDLE), "--rows", "1,2", "--rounds", "2"]


@pytest.fixture
def printed(monkeypatch, capsys):
    """By arguments: what the benchmark prints, and its result."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [*ARGUMENTS, *arguments])
        verification_cost.main()
        text = capsys.readouterr().out
        return text, json.loads(text.splitlines()[-1])

    return run


@pytest.fixture
def calls(monkeypatch):
    """Devices, lengths of the cache and rows of all verifications, in their order."""
    made, verify = [], Runner.verify

    def noted(runner, rows):
        made.append((runner.model.device, runner.length, len(rows.tokens)))
        return verify(runner, rows)

    monkeypatch.setattr(Runner, "verify", noted)
    return made


def test_named_devices_take_turns_behind_each_length(printed, calls):
    given = [part for name in CPU_ENGINES for part in ("--device", name)]
    text, result = printed("--lengths", "48,16", *given)
    turns = [(n, rows, name) for n in (16, 48) for rows in (1, 2, 8) for name in CPU_ENGINES]
    rounds = 2 + verification_cost._WARM_UP
    wanted = [turn for n in (16, 48) for turn in [t for t in turns if t[0] == n] * rounds]
    assert [(length, rows, name) for name, length, rows in calls] == wanted
    for length in ("16", "48"):
        assert list(result["milliseconds"][length]) == list(CPU_ENGINES)
        for times in result["milliseconds"][length].values():
            assert list(times) == ["1", "2", "8"]
            assert min(times.values()) > 0
    assert text.count(f"{CPU_ENGINES[1]} / {CPU_ENGINES[0]}: T(1) ") == 2
    assert "picked" not in result


def test_one_device_alone_has_no_ratio(printed, calls):
    text, result = printed("--context", "16", "--device", CPU_ENGINES[0])
    assert result["lengths"] == [16]
    assert {name for name, *_ in calls} == {CPU_ENGINES[0]}
    assert f" / {CPU_ENGINES[0]}: " not in text
