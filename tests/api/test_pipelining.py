"""Which pipeline: what overlap saves against what it costs, measured and observed."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from pairs import ENGINES
from watching import on_every_call, working_threads

from edgespec import LLM
from edgespec.api import pipelining
from edgespec.api.pipelining import pipelines
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.costs import contention, profiles
from edgespec.runtime.decoding.pipelines import Overlap, Payoff, Serial
from edgespec.runtime.drafters import NoDrafter
from edgespec.runtime.execution.runner import Runner


def simulated(payoff, rounds, *, draft, ahead, passed, waited=0.0):
    """How many of the rounds were overlapped, where drafts and passes take these times."""
    overlapped = []
    for _ in range(rounds):
        payoff.drafted(
            ahead if overlapped and overlapped[-1] else draft, bool(overlapped) and overlapped[-1]
        )
        overlapped.append(payoff.wanted())
        if overlapped[-1]:
            payoff.overlapped(passed, waited)
    return sum(overlapped[16:]) / (rounds - 16)


@pytest.mark.parametrize(
    ("slowdown", "times", "pays"),
    [
        (1.0, {"draft": 0.010, "ahead": 0.004, "passed": 0.050}, True),
        (1.1, {"draft": 0.010, "ahead": 0.004, "passed": 0.050}, True),
        (1.2, {"draft": 0.010, "ahead": 0.004, "passed": 0.050}, False),
        (1.0, {"draft": 0.010, "ahead": 0.010, "passed": 0.050}, False),
        (1.0, {"draft": 0.010, "ahead": 0.004, "passed": 0.050, "waited": 0.007}, False),
    ],
)
def test_overlap_is_used_where_it_saves_more_than_it_costs(slowdown, times, pays):
    share = simulated(Payoff(slowdown), 400, **times)
    assert share > 0.9 if pays else share < 0.1
    assert 0 < share < 1  # the other way is tried now and then


def test_the_draft_that_reads_the_prompt_does_not_count():
    payoff = Payoff(1.2)
    payoff.drafted(1.0, ahead=False)
    assert simulated(payoff, 48, draft=0.010, ahead=0.009, passed=0.050) < 0.1


def test_a_payoff_follows_what_changes():
    payoff, times = Payoff(1.1), {"draft": 0.010, "ahead": 0.004}
    assert simulated(payoff, 200, passed=0.050, **times) > 0.9
    assert simulated(payoff, 600, passed=0.200, **times) < 0.4
    assert simulated(payoff, 1200, passed=0.050, **times) > 0.5


def test_a_payoff_is_told_what_drafts_and_passes_took():
    told, begun = [], threading.Event()

    class Told:
        wanted = iter([True, False]).__next__

        def drafted(self, seconds, ahead):
            told.append((ahead, seconds))

        def overlapped(self, passed, waited):
            told.append((passed, waited))

    class Slow:
        def draft(self, text, budget):
            time.sleep(0.02)

        def verify(self, rows):
            begun.wait()

        def draft_ahead(self):
            begun.set()
            time.sleep(0.05)  # beyond the pass

    pipeline = Overlap(Slow(), Slow(), Told())
    for _ in range(2):
        pipeline.draft([], None)
        pipeline.verify(None)
    pipeline.draft([], None)
    first, (passed, waited), second, third = told
    assert [ahead for ahead, _ in (first, second, third)] == [False, True, False]
    assert all(0.02 <= seconds < 5 for _, seconds in (first, second, third))
    assert min(passed, waited) > 0
    assert 0.05 <= passed + waited < 5


def test_engines_on_one_processor_do_not_overlap(pairs, monkeypatch):
    monkeypatch.setattr(contention, "slowdown", lambda *_: pytest.fail("measured for nothing"))
    llm = pairs.llm("llama", ENGINES[0], "model", draft_device=ENGINES[1], pipeline="auto")
    assert llm._texts.shared.pipeline is Serial


def test_two_devices_are_measured_once(pairs, monkeypatch):
    llm = pairs.llm("llama", ENGINES[0], "model")
    loaded, measured = dict(llm._loaded), []
    elsewhere = type("Elsewhere", (), {"name": "fake:gpu", "hardware": "none", "version": "1"})()
    loaded["draft"] = replace(loaded["draft"], engines=(elsewhere,))
    monkeypatch.setattr(contention, "slowdown", lambda *_: measured.append(1) or 1.25)
    for _ in range(2):
        made = pipelines("auto", llm.bundle, loaded, 1)(Runner(llm.target), NoDrafter())
        assert isinstance(made, Overlap)
    assert len(measured) == 1
    engines = (*loaded["target"].engines, elsewhere)
    assert profiles.recall_overlap_cost(llm.bundle, engines, 1).slowdown == 1.25
    assert pipelines("serial", llm.bundle, loaded, 1) is Serial


def test_models_that_share_a_device_slow_each_other_down(pairs, monkeypatch):
    llm, beside = pairs.llm("llama", ENGINES[0], "model"), 2

    def busy(_):
        drafting = any(thread.name == "edgespec-contention" for thread in working_threads())
        time.sleep(0.01 * beside if drafting else 0.01)

    on_every_call(monkeypatch, llm, "target", busy)
    models = llm.target, llm._loaded["draft"].model
    assert 1.5 < contention.slowdown(*models) < 2.5
    beside = 1
    assert 1.0 <= contention.slowdown(*models) < 1.4
    assert not working_threads()


def test_a_device_that_fails_while_it_is_measured_ends_the_overlap(pairs, monkeypatch, caplog):
    llm = pairs.llm("llama", ENGINES[0], "model")

    def fail(_):
        if any(thread.name == "edgespec-contention" for thread in working_threads()):
            raise RuntimeError("out of memory")

    on_every_call(monkeypatch, llm, "draft", fail)
    with pytest.raises(DeviceError, match=r"onnxruntime:cpu failed \(out of memory\)"):
        contention.slowdown(llm.target, llm._loaded["draft"].model)
    monkeypatch.setattr(pipelining, "apart", lambda *_: True)
    for _ in range(2):  # nothing is remembered
        assert pipelines("auto", llm.bundle, llm._loaded, 1) is Serial
    assert caplog.text.count("drafting and verifying at once failed") == 2
    assert not working_threads()


def test_pipelines_that_cannot_be(pairs):
    with pytest.raises(InputError, match=r"pipeline is 'both': use one of auto, serial, overlap"):
        LLM(pairs.pair("llama").path, pipeline="both")
    with pytest.raises(InputError, match=r"pipeline is 'overlap', and .* no draft model in use"):
        LLM(pairs.pair("llama").path, pipeline="overlap", draft="lookup", device=ENGINES[0])
