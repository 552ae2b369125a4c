"""Tests of drafting during verification: the text stays the same, whatever fails."""

from __future__ import annotations

import random
import threading
import time
from itertools import product

import pytest
from pairs import ENGINES, LONG_PROMPT, NEW_TOKENS
from parity import made
from watching import executables, on_every_call, working_threads

from edgespec import LLM
from edgespec.errors import DeviceError
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.drafters import ModelDrafter
from edgespec.runtime.engines.host import HostCache
from edgespec.runtime.execution.runner import Runner

SAMPLED = {"temperature": 2.5, "seed": 3}
MODES = [{}, SAMPLED, {"temperature": 2.0, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 5}]
modes = pytest.mark.parametrize("fields", MODES, ids=str)


@pytest.fixture(scope="module")
def overlapping(pairs):
    """A pair that drafts during verification, and the text of plain decoding."""

    def load(draft="model", name="llama"):
        return pairs.llm(name, ENGINES[0], draft, pipeline="overlap")

    return load


def plain(pairs, fields, name="llama"):
    llm = pairs.llm(name, ENGINES[0], "none")
    return llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields).tokens


# The text


@pytest.mark.slow
@modes
@pytest.mark.parametrize(
    ("draft", "name"),
    [
        *product(("model", "auto"), ("llama", "twin", "half", "stranger")),
        ("parallel", "llama"),
    ],
)
def test_text_is_plain_decodings_own(pairs, overlapping, name, draft, fields):
    result = overlapping(draft, name).generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
    assert result.tokens == plain(pairs, fields, name)
    assert result.accepted + result.rounds + 1 == result.new_tokens
    assert result.begun <= result.rounds
    assert not working_threads()


@pytest.mark.slow
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
    """They use the engine of the verification, and take turns with a draft model."""
    for name, layers in (("target", 4), ("draft", 1)):
        made(tmp_path / name, "llama", num_hidden_layers=layers)
    options = ExportOptions("fp32", skip_sets=("1",))
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
    ahead, ran = ModelDrafter.draft_ahead, threading.Event()
    monkeypatch.setattr(ModelDrafter, "draft_ahead", lambda self: (ahead(self), ran.set())[0])
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


@pytest.mark.slow
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


# What fails


def fail_from(first, kind=RuntimeError):
    def action(call):
        if call >= first:
            raise kind("device lost")

    return action


@pytest.mark.slow
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
    """It fails when rows of its cache are moved."""
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
    """An engine raises its own error; a device that is gone cannot allocate new caches."""
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


@pytest.mark.parametrize("draft", ["model", "auto"])
def test_a_draft_device_without_room_for_a_cache_costs_no_token(
    pairs, overlapping, monkeypatch, caplog, draft
):
    """Other programs may have taken its memory since the model was loaded."""
    llm = overlapping(draft)
    [executable] = executables(llm, "draft")

    def full(*_):
        raise MemoryError("out of memory")

    with llm.session() as session:
        with monkeypatch.context() as patch:
            patch.setattr(executable, "new_cache", full)
            result = session.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
        assert result.tokens == plain(pairs, {})
        assert result.draft_engine is None
        [warning] = caplog.records
        assert warning.message.endswith("the text goes on without drafts by the draft model")
        # The next text tries again.
        result = session.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
        assert result.tokens == plain(pairs, {})
        assert result.draft_engine


def test_a_draft_device_that_fails_beside_the_target_drafts_alone(
    pairs, overlapping, monkeypatch, caplog
):
    llm, beside = overlapping(), threading.Event()
    ahead = ModelDrafter.draft_ahead

    def watched(self):
        beside.set()
        try:
            return ahead(self)
        finally:
            beside.clear()

    monkeypatch.setattr(ModelDrafter, "draft_ahead", watched)
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

    monkeypatch.setattr(ModelDrafter, "draft_ahead", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    assert not working_threads()
