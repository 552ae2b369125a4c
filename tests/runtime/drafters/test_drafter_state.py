"""Tests of what draft sources keep from text to text and from run to run."""

from __future__ import annotations

import gc
import json
from dataclasses import replace

import pytest
from cuts import EMBEDDED
from pairs import ENGINES

from edgespec import LLM
from edgespec.runtime.costs import profiles
from edgespec.runtime.drafters import DrafterState, drafter_state
from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.drafters.successors import Successors
from edgespec.runtime.engines import engine
from edgespec.system import cachedir

pytestmark = pytest.mark.usefixtures("own_cache")

PROMPT = "def fibonacci(n):\n"


def drafter_state_with(kept=None):
    return DrafterState(Successors(100), kept)


def taught(rate, times=200):
    learned = drafter_state_with()
    for sampled in (False, True):
        calibration = learned.calibration("lookup", sampled)
        for turn in range(times):
            calibration.observe(3, turn % 10 < 10 * (1 - rate if sampled else rate))
    return learned


def load(**options):
    return LLM(device=ENGINES[0], draft_device=ENGINES[0], threads=1, context=256, **options)


def test_counts_are_kept_for_their_bundle_source_and_kind_of_text():
    drafter_state.remember(EMBEDDED, taught(0.9).acceptance)
    found = drafter_state_with(drafter_state.recall(EMBEDDED))
    assert found.calibration("lookup", False).acceptance(3, 0.5) > 0.65
    assert found.calibration("lookup", True).acceptance(3, 0.5) < 0.35
    for unknown in (found.calibration("model", False), found.calibration("lookup", False)):
        assert unknown.acceptance(4, 0.5) == 0.5
    other = replace(EMBEDDED, manifest=replace(EMBEDDED.manifest, provenance={"other": "one"}))
    assert drafter_state.recall(other) is None


def test_a_new_text_can_overrule_what_was_kept():
    """It takes few observations, because stored counts weigh little."""
    kept = Calibration(taught(1.0).calibration("lookup", False).counts)
    assert kept.acceptance(3, 1.0) == pytest.approx(1.0)
    for _ in range(20):
        kept.observe(3, False)
    assert kept.acceptance(3, 0.0) < 0.45


def test_few_counts_stay_few():
    known = Calibration({3: (1.0, 2.0)})
    assert known.acceptance(3, 1.0) == Calibration(known.counts).acceptance(3, 1.0)


COUNTS = '{"cells": {"lookup": {"greedy": {"3": [10.0, 10.0], %s}}}}'
IMPOSSIBLE = (
    '"4": [2.0, 1.0]', '"4": [-1, 1]', '"4": [0, 0]', '"4": [NaN, 1]', '"4": [1, NaN]', '"4": []',
    '"x": [1.0, 1.0]', f'"{"4" * 9999}": [1.0, 1.0]', '"4": [1, 2, 3]', '"4": [1, Infinity]',
)  # fmt: skip


@pytest.mark.parametrize("damage", IMPOSSIBLE)
def test_counts_that_cannot_be_are_left_out(own_cache, damage):
    drafter_state.remember(EMBEDDED, taught(0.5).acceptance)
    [file] = (own_cache / "acceptance").iterdir()
    file.write_text(COUNTS % damage)
    found = drafter_state_with(drafter_state.recall(EMBEDDED)).calibration("lookup", False)
    assert found.acceptance(3, 0.5) > 0.6
    assert found.acceptance(4, 0.5) == 0.5


@pytest.mark.parametrize("damage", ["", "[]", "{}", "\x00", '{"cells": {"lookup": 3}}', "[" * 9999])
def test_a_damaged_file_is_none_and_gives_way(own_cache, damage):
    drafter_state.remember(EMBEDDED, taught(0.5).acceptance)
    [file] = (own_cache / "acceptance").iterdir()
    file.write_text(damage)
    assert drafter_state.recall(EMBEDDED) is None
    drafter_state.remember(EMBEDDED, taught(0.5).acceptance)
    assert drafter_state.recall(EMBEDDED) == taught(0.5).acceptance


def test_a_model_begins_with_what_the_last_one_learned(own_cache):
    with load() as llm:
        cold = llm.generate(PROMPT, max_new_tokens=60)
    [file] = (own_cache / "acceptance").iterdir()
    kept = json.loads(file.read_text())["cells"]
    assert "lookup" in kept
    assert all(kinds.keys() == {"greedy"} for kinds in kept.values())
    at = EMBEDDED, "target", (engine(ENGINES[0]),), 1
    assert profiles.recall(*at).lived_calls >= cold.rounds - 1
    with load() as llm:
        known = llm._learned.state.calibration("lookup", False).counts
        assert known.keys() == {int(cell) for cell in kept["lookup"]["greedy"]}
        warm = llm.generate(PROMPT, max_new_tokens=60)
        llm.forget()
        assert not llm._learned.state.calibration("lookup", False).counts
    assert warm.tokens == cold.tokens


def test_a_model_that_nobody_closes_keeps_it_too(own_cache):
    llm = load()
    llm.generate(PROMPT, max_new_tokens=20)
    assert not list((own_cache / "acceptance").iterdir())
    del llm
    gc.collect()
    assert list((own_cache / "acceptance").iterdir())


def test_a_model_without_a_plan_keeps_nothing(own_cache):
    with load(draft="lookup") as llm:
        llm.generate(PROMPT, max_new_tokens=20)
    assert not list((own_cache / "acceptance").iterdir())


def test_a_cache_that_takes_nothing_is_no_error(monkeypatch, caplog):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    cachedir._warn.cache_clear()
    monkeypatch.setattr(cachedir.Path, "write_text", refuse)
    drafter_state.remember(EMBEDDED, taught(0.5).acceptance)
    assert [message.partition(" /")[0] for message in caplog.messages] == [
        "cannot write to the cache folder"
    ]
    assert drafter_state.recall(EMBEDDED) is None
