"""Drafting while the target verifies: the same text, whatever comes in whose way."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest
from candidates import Trusting
from pairs import ENGINES, LONG_PROMPT, NEW_TOKENS
from parity import made

from edgespec import LLM, pipelining
from edgespec.errors import DeviceError, InputError
from edgespec.export import ExportOptions, export_bundle
from edgespec.pipelining import pipelines
from edgespec.runtime import corun, profiles
from edgespec.runtime.drafters import ModelCalls, ModelDrafter, NoDrafter, TreeBudget
from edgespec.runtime.engines.host import HostCache
from edgespec.runtime.pipelines import Overlap, Payoff, Serial
from edgespec.runtime.runner import Runner
from edgespec.runtime.sampling import Sampler, SamplingOptions
from edgespec.runtime.verify import Verdict

VOCABULARY = 331
SAMPLED = {"temperature": 2.5, "seed": 3}
MODES = [{}, SAMPLED, {"temperature": 2.0, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 5}]
modes = pytest.mark.parametrize("fields", MODES, ids=str)
NOTHING = Verdict((), (1,))


@pytest.fixture(scope="module")
def overlapping(pairs):
    """A pair whose drafts go on while the target verifies, and what plain decoding makes."""

    def load(draft="model", name="llama"):
        return pairs.llm(name, ENGINES[0], draft, pipeline="overlap")

    return load


def plain(pairs, fields, name="llama"):
    llm = pairs.llm(name, ENGINES[0], "none")
    return llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields).tokens


def executables(llm, role):
    return llm._loaded[role].model.executables


def on_every_call(monkeypatch, llm, role, action):
    """`action(call number)` before each call of a role's engine."""
    for executable in executables(llm, role):
        run, calls = executable.run, iter(range(10**9))

        def watched(feeds, cache, run=run, calls=calls):
            action(next(calls))
            return run(feeds, cache)

        monkeypatch.setattr(executable, "run", watched)


def working_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("edgespec")]


# The text


@modes
@pytest.mark.parametrize("draft", ["model", "auto"])
@pytest.mark.parametrize("name", ["llama", "twin", "half", "stranger"])
def test_text_is_plain_decodings_own(pairs, overlapping, name, draft, fields):
    result = overlapping(draft, name).generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
    assert result.tokens == plain(pairs, fields, name)
    assert result.accepted + result.rounds + 1 == result.new_tokens
    assert result.begun <= result.rounds
    assert not working_threads()


@modes
def test_a_target_on_two_engines(pairs, fields):
    place = {"place": f"0={ENGINES[0]},1={ENGINES[1]}", "threads": 1}
    path, options = pairs.pair("cut").path, {"max_new_tokens": NEW_TOKENS, **fields}
    alone = LLM(path, draft="none", **place).generate(LONG_PROMPT, **options)
    for draft in ("model", "auto"):
        llm = LLM(path, draft=draft, draft_device=ENGINES[0], pipeline="overlap", **place)
        assert llm.generate(LONG_PROMPT, **options).tokens == alone.tokens


@modes
def test_drafts_on_the_targets_own_layers_wait_for_it(fields, tmp_path, monkeypatch):
    """They run on what the verification runs on, and take turns with a draft model."""
    for name, layers in (("target", 4), ("draft", 1)):
        made(tmp_path / name, "llama", num_hidden_layers=layers)
    options = ExportOptions("fp32", skip_sets=((2, 3),))
    export_bundle(tmp_path / "target", tmp_path / "bundle", tmp_path / "draft", options)
    place = {"device": ENGINES[0], "draft_device": ENGINES[0], "threads": 1}
    alone = LLM(tmp_path / "bundle", draft="none", **place)
    llm = LLM(tmp_path / "bundle", pipeline="overlap", **place)
    main, elsewhere = threading.get_ident(), set()
    draft = Runner.draft

    def watched(self, rows, path=None):
        if self.model is llm.target:
            elsewhere.add(threading.get_ident() == main and not working_threads())
        return draft(self, rows, path)

    monkeypatch.setattr(Runner, "draft", watched)
    result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
    expected = alone.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
    assert result.tokens == expected.tokens
    assert elsewhere == {True}


def test_the_draft_and_the_target_do_work_at_once(overlapping, monkeypatch):
    llm = overlapping()
    main, threads = threading.get_ident(), {"target": set(), "draft": set()}
    for role, found in threads.items():
        on_every_call(
            monkeypatch, llm, role, lambda _, found=found: found.add(threading.get_ident())
        )
    # The pass waits until a draft has been run beside it.
    ahead, ran = ModelDrafter.ahead, threading.Event()
    monkeypatch.setattr(ModelDrafter, "ahead", lambda self: (ahead(self), ran.set())[0])
    passes = []

    def wait(_):
        if threading.get_ident() != main:
            passes.append(ran.wait(10))
            ran.clear()

    on_every_call(monkeypatch, llm, "target", wait)
    result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    assert threads["draft"] == {main}
    assert threads["target"] > {main}  # the prompt's own pass stays here
    assert len(passes) == result.rounds
    assert all(passes)
    assert result.begun > result.rounds / 4


def test_random_delays_change_nothing_in_thousands_of_rounds(pairs, overlapping, monkeypatch):
    rng, rounds, begun = random.Random(1), 0, 0
    for draft in ("model", "auto"):
        llm = overlapping(draft)
        with monkeypatch.context() as patch:
            for role in ("target", "draft"):
                on_every_call(
                    patch, llm, role,
                    lambda _: rng.random() < 0.2 and time.sleep(rng.expovariate(2000)),
                )  # fmt: skip
            for turn in range(24):
                fields = {"temperature": 3.0, "seed": turn} if turn % 2 else {}
                result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
                assert result.tokens == plain(pairs, fields)
                rounds, begun = rounds + result.rounds, begun + result.begun
    assert rounds > 2000
    assert rounds / 10 < begun < rounds


# Work ahead


@pytest.fixture(params=ENGINES)
def drafter(request, pairs):
    """With every edge taken at its word."""
    model = pairs.llm("llama", request.param, "model")._loaded["draft"].model
    return lambda: ModelDrafter(ModelCalls(Runner(model)), Trusting())


@pytest.mark.parametrize("options", [SamplingOptions(), SamplingOptions(3.0, seed=1)], ids=str)
def test_what_was_drafted_ahead_is_what_would_have_been_drafted(drafter, options):
    """Wherever the text goes on along nodes that were run, the next draft is there."""
    budget, rng, arrived = TreeBudget(8, 4, 3), random.Random(2), 0
    for start in range(1, 40):
        text, working = list(range(start, start + 5)), drafter()
        working.begin(text, Sampler(options, VOCABULARY))
        for _ in range(3):
            tree = working.draft(text, budget).tree()
            for _ in range(rng.randrange(8)):
                working.ahead()
            nodes = [node for level in working._levels for node in level]
            end = rng.choice(nodes)
            working.observe(Verdict((), tuple(end.branch())), tree, np.zeros((9, VOCABULARY)))
            text += end.branch()
            proposal = working.draft(text, budget)
            assert proposal.begun is end.ran
            assert working.fed == [] if end.ran else sum(working.fed) >= 1
            arrived += end.ran
            fresh = drafter()
            fresh.begin(text, Sampler(options, VOCABULARY))
            expected = values(fresh.draft(text, budget))
            found = values(proposal)
            assert sum(found.values()) > sum(expected.values()) - 1e-3
            for branch in found.keys() & expected.keys():
                assert found[branch] == pytest.approx(expected[branch], rel=1e-2, abs=1e-5)
            assert len(found.keys() & expected.keys()) > len(expected) / 2
            working.observe(NOTHING, proposal.tree(), np.zeros((9, VOCABULARY)))
            text.append(1)
    assert arrived > 20


def values(proposal):
    tree = proposal.tree()
    return {
        tuple(tree.tokens[tree.path(node)].tolist()): proposal.values[node]
        for node in range(len(tree))
    }


def test_work_ahead_ends_with_what_is_likely(drafter):
    working = drafter()
    assert not NoDrafter().ahead()
    working.begin([1, 2, 3], Sampler(SamplingOptions(), VOCABULARY))
    working.draft([1, 2, 3], TreeBudget(4, 2, 2))
    steps = 0
    while working.ahead():
        steps += 1
    assert 1 <= steps <= 128
    assert len(working._levels) > 2  # deeper than what was proposed


def test_work_ahead_stays_inside_the_drafts_context(pairs):
    llm = pairs.llm("stranger", ENGINES[0], "model")
    working = ModelDrafter(ModelCalls(Runner(llm._loaded["draft"].model)), Trusting())
    text = [1 + n % 300 for n in range(97)]  # the draft knows 100 positions
    working.begin(text, Sampler(SamplingOptions(), VOCABULARY))
    working.draft(text, TreeBudget(8, 8, 4))
    while working.ahead():
        pass
    assert max(node.depth for level in working._levels for node in level if node.ran) <= 3


# What fails


def fail_from(first, kind=RuntimeError):
    def action(call):
        if call >= first:
            raise kind("device lost")

    return action


@modes
@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("kind", [RuntimeError, MemoryError, DeviceError])
def test_a_draft_device_that_is_lost_costs_no_token(
    pairs, overlapping, monkeypatch, caplog, fields, first, kind
):
    for draft in ("model", "auto"):
        caplog.clear()
        llm = overlapping(draft)
        with monkeypatch.context() as patch:
            on_every_call(patch, llm, "draft", fail_from(first, kind))
            result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
        assert result.tokens == plain(pairs, fields)
        [warning] = caplog.records
        # What an engine has said for itself is not said again around it.
        said = "device lost" if kind is DeviceError else "onnxruntime:cpu failed (device lost)"
        assert warning.message.startswith(said)
        assert not working_threads()
    # The next text tries again.
    assert overlapping().generate(LONG_PROMPT, max_new_tokens=20).accepted


@pytest.mark.parametrize("draft", ["model", "auto"])
def test_a_draft_device_that_is_lost_between_calls_costs_no_token(
    pairs, overlapping, monkeypatch, caplog, draft
):
    """Where rows of its cache are moved."""
    llm = overlapping(draft)

    def lost(*_):
        raise DeviceError("device lost")

    monkeypatch.setattr(Runner, "keep", lost)
    result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    assert result.tokens == plain(pairs, {})
    [warning] = caplog.records
    assert warning.message.startswith("device lost: the text goes on without drafts")


@pytest.mark.parametrize("lost", ["new_cache", "move"])
def test_a_draft_device_that_is_lost_with_its_caches_costs_no_token(
    pairs, overlapping, monkeypatch, caplog, lost
):
    """An engine says so in its own words; for one that is gone nothing can begin anew."""
    llm = overlapping()
    [executable] = executables(llm, "draft")

    def fail(*_):
        raise RuntimeError("device lost")

    stream = llm.stream(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    next(iter(stream))
    if lost == "new_cache":
        on_every_call(monkeypatch, llm, "draft", fail)
        monkeypatch.setattr(executable, "new_cache", fail)
    else:
        monkeypatch.setattr(HostCache, "move", fail)
    assert stream.finish().tokens == plain(pairs, {})
    [warning] = caplog.records
    assert warning.message.startswith("onnxruntime:cpu failed (device lost)")


def test_a_draft_device_that_fails_beside_the_target_drafts_alone(
    pairs, overlapping, monkeypatch, caplog
):
    llm, beside = overlapping(), threading.Event()
    ahead = ModelDrafter.ahead

    def watched(self):
        beside.set()
        try:
            return ahead(self)
        finally:
            beside.clear()

    monkeypatch.setattr(ModelDrafter, "ahead", watched)
    on_every_call(monkeypatch, llm, "draft", lambda _: beside.is_set() and fail_from(0)(0))
    result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    assert result.tokens == plain(pairs, {})
    assert result.accepted > result.rounds / 2
    assert len(caplog.records) == 1


def test_a_pass_that_fails_beside_the_draft_is_made_alone(pairs, overlapping, monkeypatch, caplog):
    llm, main = overlapping(), threading.get_ident()

    def fail_elsewhere(_):
        if threading.get_ident() != main:
            raise MemoryError("out of memory")

    on_every_call(monkeypatch, llm, "target", fail_elsewhere)
    result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    assert result.tokens == plain(pairs, {})
    [warning] = caplog.records
    assert "the text goes on without overlap" in warning.message


def test_a_target_that_is_lost_is_an_error(overlapping, monkeypatch):
    llm = overlapping()
    on_every_call(monkeypatch, llm, "target", fail_from(4))
    with pytest.raises(DeviceError, match="device lost"):
        llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    assert not working_threads()


def test_nothing_is_left_behind_wherever_a_text_ends(overlapping, monkeypatch):
    llm = overlapping()
    stream = llm.stream(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    pieces = [next(iter(stream)) for _ in range(3)]
    assert all(pieces)
    stream.cancel()
    list(stream)
    assert stream.result.finish_reason == "cancelled"
    assert not working_threads()
    abandoned = llm.stream(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    assert [next(iter(abandoned)) for _ in range(3)]
    assert not working_threads()

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelDrafter, "ahead", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    assert not working_threads()


# Which pipeline


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


def test_engines_on_one_processor_do_not_overlap(pairs, monkeypatch):
    monkeypatch.setattr(pipelining, "slowdown", lambda *_: pytest.fail("measured for nothing"))
    llm = pairs.llm("llama", ENGINES[0], "model", draft_device=ENGINES[1], pipeline="auto")
    assert llm._pipelines is Serial


def test_two_devices_are_measured_once(pairs, monkeypatch):
    llm = pairs.llm("llama", ENGINES[0], "model")
    loaded, measured = dict(llm._loaded), []
    elsewhere = type("Elsewhere", (), {"name": "fake:gpu", "hardware": "none", "version": "1"})()
    loaded["draft"] = type(loaded["draft"])(loaded["draft"].model, (elsewhere,), None)
    monkeypatch.setattr(pipelining, "slowdown", lambda *_: measured.append(1) or 1.25)
    for _ in range(2):
        made = pipelines("auto", llm.bundle, loaded, 1)(Runner(llm.target), NoDrafter())
        assert isinstance(made, Overlap)
    assert len(measured) == 1
    engines = (*loaded["target"].engines, elsewhere)
    assert profiles.recall_pairing(llm.bundle, engines, 1).slowdown == 1.25
    assert pipelines("serial", llm.bundle, loaded, 1) is Serial


def test_models_that_share_a_device_slow_each_other_down(pairs, monkeypatch):
    llm, beside = pairs.llm("llama", ENGINES[0], "model"), 2

    def busy(_):
        drafting = any(thread.name == "edgespec-corun" for thread in working_threads())
        time.sleep(0.01 * beside if drafting else 0.01)

    on_every_call(monkeypatch, llm, "target", busy)
    models = llm.target, llm._loaded["draft"].model
    assert 1.5 < corun.slowdown(*models) < 2.5
    beside = 1
    assert 1.0 <= corun.slowdown(*models) < 1.4
    assert not working_threads()


def test_pipelines_that_cannot_be(pairs):
    with pytest.raises(InputError, match=r"pipeline is 'both': use one of auto, serial, overlap"):
        LLM(pairs.pair("llama").path, pipeline="both")
    with pytest.raises(InputError, match=r"pipeline is 'overlap', and .* no draft model in use"):
        LLM(pairs.pair("llama").path, pipeline="overlap", draft="lookup", device=ENGINES[0])
