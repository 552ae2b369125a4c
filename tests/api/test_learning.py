"""Learning between texts: the texts stay what they are, and none waits for it."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import pytest
from pairs import ENGINES, LONG_PROMPT, SHORT_PROMPT
from sessions import load
from watching import on_every_call

from edgespec import LLM
from edgespec.api import learning
from edgespec.errors import InputError
from edgespec.runtime.drafters.correction import SIZE, SPAN
from edgespec.runtime.drafters.learner import Evidence, Learner

PROMPTS = [LONG_PROMPT[start : start + 150] for start in range(0, 240, 40)]


@pytest.fixture(params=["model", "auto"])
def llm(request, pairs, tmp_path):
    with load(pairs, request.param, learn=tmp_path / "learned") as llm:
        yield llm


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("draft", ["model", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_plain_decodings(pairs, tmp_path, engine, draft, temperature):
    """Whether nothing, something or nonsense was learned."""
    plain = pairs.llm("llama", engine, "none")
    place = {"device": engine, "draft_device": engine}
    options = {"max_new_tokens": 60, "temperature": temperature, "seed": 5}
    expected = [plain.generate(prompt, **options).tokens for prompt in PROMPTS]
    learned = []
    with load(pairs, draft, learn=tmp_path / "learned", **place) as llm:
        for nonsense in (False, True):
            learner = llm._learned.learning.learner
            if nonsense:
                learner.correction.weights[:] = [(n * 7919) % 13 - 6.0 for n in range(SIZE)]
                learner.evidence = Evidence(alone=1e9, corrected=0.0)
            for prompt, tokens in zip(PROMPTS, expected, strict=True):
                result = llm.generate(prompt, **options)
                assert result.tokens == tokens
                learned.append(result.learned)
            assert learner.trained > 0
    assert learned[0] == 0
    assert all(learned[len(PROMPTS) :])


def test_a_draft_that_ranks_wrongly_accepts_more_texts_later(pairs, tmp_path):
    """The same texts again take fewer rounds once their lessons are learned."""
    options = {"max_new_tokens": 80, "num_assistant_tokens": 3, "tree_width": 1}

    def rounds(llm):
        return sum(llm.generate(prompt, **options).rounds for prompt in PROMPTS)

    without = rounds(load(pairs, "model"))
    with load(pairs, "model", learn=tmp_path / "learned") as llm:
        first, *_, last = (rounds(llm) for _ in range(6))
    assert first <= without * 1.05
    assert last < 0.9 * without
    with load(pairs, "model", learn=tmp_path / "learned") as llm:  # and after a restart
        assert rounds(llm) < 0.9 * without
        assert llm.generate(SHORT_PROMPT).learned > 1000


@pytest.mark.parametrize("pipeline", ["serial", "overlap"])
@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_examples_are_of_one_and_the_same_row(pairs, tmp_path, pipeline, temperature):
    """A draft that is the target says what the target says, after the same tokens."""
    how = {"max_new_tokens": 60, "temperature": temperature, "seed": 1, "num_assistant_tokens": 4}
    with load(pairs, "model", "twin", learn=tmp_path / "learned", pipeline=pipeline) as llm:
        learner, seen = llm._learned.learning.learner, set()
        for prompt in PROMPTS:
            text = llm.tokenizer.encode(prompt) + llm.generate(prompt, **how).tokens
            seen |= {tuple(text[at : at + SPAN]) for at in range(len(text))}
        count = learner._next
        assert count > 150
        assert {tuple(context) for context in learner._contexts[:count].tolist()} <= seen
        np.testing.assert_allclose(learner._draft[:count], learner._target[:count], atol=1e-3)
        assert np.ptp(learner._target[:count], axis=1).min() > 1


def test_nothing_is_learned_while_a_text_is_in_progress(llm, monkeypatch):
    seen = []
    step = Learner.step

    def watched(self):
        seen.append((llm._learned.learning.texts, llm.lock._taken))
        return step(self)

    monkeypatch.setattr(Learner, "step", watched)
    long = llm.stream(LONG_PROMPT, max_new_tokens=60)
    pieces = iter(long)
    next(pieces)
    llm.generate(SHORT_PROMPT, max_new_tokens=40)  # ends while the other goes on
    assert not seen
    assert not llm._learned.learning.learner.trained
    for _ in pieces:
        pass
    assert set(seen) == {(0, True)}
    assert llm._learned.learning.learner.trained


def test_no_round_runs_during_a_step(llm, monkeypatch):
    inside, calls = [], []
    step = Learner.step

    def slow(self):
        inside.append(True)
        time.sleep(0.001)
        try:
            return step(self)
        finally:
            inside.pop()

    monkeypatch.setattr(Learner, "step", slow)
    for role in ("target", "draft"):
        on_every_call(monkeypatch, llm, role, lambda _: calls.append(bool(inside)))
    threads = [
        threading.Thread(target=llm.generate, args=(prompt,), kwargs={"max_new_tokens": 20})
        for prompt in PROMPTS
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert calls
    assert not any(calls)


def test_a_text_that_begins_ends_the_learning(llm, monkeypatch):
    """After the step that is being made: what is left is learned later."""
    monkeypatch.setattr(learning, "_BREAK", 60.0)
    steps, begun = [], threading.Event()

    def endless(self):
        steps.append(llm._learned.learning.texts)
        begun.set()
        time.sleep(0.002)
        return True

    monkeypatch.setattr(Learner, "step", endless)
    first = threading.Thread(target=llm.generate, args=(SHORT_PROMPT,), daemon=True)
    first.start()
    assert begun.wait(60)
    stream = llm.stream(SHORT_PROMPT, max_new_tokens=5)
    pieces = iter(stream)
    next(pieces)
    first.join(10)  # the text is still in progress, and has ended the learning
    assert not first.is_alive()
    assert set(steps) == {0}
    monkeypatch.undo()
    for _ in pieces:
        pass
    assert stream.result.new_tokens == 5


def test_the_break_behind_a_text_is_short(llm, monkeypatch):
    steps = []

    def endless(self):
        steps.append(time.perf_counter())
        time.sleep(0.0005)
        return True

    monkeypatch.setattr(Learner, "step", endless)
    llm.generate(SHORT_PROMPT, max_new_tokens=5)
    assert 1 <= len(steps) <= 9
    monkeypatch.undo()


@pytest.mark.parametrize("end", ["close", "drop", "cancel"])
def test_what_was_learned_is_kept_at_the_end(pairs, tmp_path, end):
    path = tmp_path / "learned"
    llm = load(pairs, "model", learn=path)
    stream = llm.stream(LONG_PROMPT, max_new_tokens=60)
    if end == "cancel":
        pieces = iter(stream)
        next(pieces)
        next(pieces)
        stream.cancel()
    stream.finish()
    assert not path.exists()
    if end == "drop":
        del llm, stream
    else:
        llm.close()
    assert Learner.load(path, pairs.llm("llama", ENGINES[0], "none").bundle.digest).trained > 0


def test_a_long_run_keeps_it_meanwhile(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "_SAVE_EVERY", 0.0)
    monkeypatch.setattr(learning, "_BREAK", 60.0)  # so that nothing is left to learn at the end
    path = tmp_path / "learned"
    llm = load(pairs, "model", learn=path)
    llm.generate(LONG_PROMPT, max_new_tokens=40)
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Learner.load(path, llm.bundle.digest).trained > 0
    path.unlink()  # and nothing new was learned
    llm.close()
    assert not path.exists()


def test_a_deleted_file_begins_anew(pairs, tmp_path):
    path = tmp_path / "learned"
    for _ in range(2):
        with load(pairs, "model", learn=path) as llm:
            assert not llm._learned.learning.learner.trained
            llm.generate(SHORT_PROMPT, max_new_tokens=30)
        path.unlink()


def test_nothing_is_written_if_nothing_was_learned(pairs, tmp_path):
    with load(pairs, "model", learn=tmp_path / "learned") as llm:
        llm.generate(SHORT_PROMPT, max_new_tokens=20, draft_source="none")
        llm.generate(SHORT_PROMPT, max_new_tokens=20, draft_source="lookup")
    assert not (tmp_path / "learned").exists()


def test_forgetting_goes_back_to_the_file_and_leaves_it_alone(pairs, tmp_path):
    path = tmp_path / "learned"
    with load(pairs, "model", learn=path) as llm:
        llm.generate(LONG_PROMPT, max_new_tokens=60)
    before = path.read_bytes()
    with load(pairs, "model", learn=path) as llm:
        trained = llm._learned.learning.learner.trained
        llm.forget()
        llm.generate(LONG_PROMPT, max_new_tokens=60)
        assert llm._learned.learning.learner.trained > trained
        llm.forget()
        assert llm._learned.learning.learner.trained == trained
        assert llm._learned.state.learner is llm._learned.learning.learner
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_written_costs_one_line_and_no_text(
    pairs, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(learning, "_SAVE_EVERY", 0.0)
    path = tmp_path / "learned"
    with (
        caplog.at_level(logging.WARNING),
        load(pairs, "model", learn=path) as llm,
    ):
        expected = load(pairs, "none").generate(LONG_PROMPT, max_new_tokens=60).tokens
        path.mkdir()
        for _ in range(3):
            assert llm.generate(LONG_PROMPT, max_new_tokens=60).tokens == expected
            for thread in threading.enumerate():
                if thread.name == "edgespec-learned":
                    thread.join()
    lines = [r.getMessage() for r in caplog.records if "learned is not kept" in r.getMessage()]
    assert len(lines) == 1
    assert f"{path} cannot be written" in lines[0]
    assert "\n" not in lines[0]


def test_it_is_refused_where_nothing_could_learn(pairs, tmp_path):
    path = tmp_path / "learned"
    for draft in ("none", "lookup", "recycling", "layer-skip"):
        with pytest.raises(InputError, match=f"learn is given, but draft '{draft}' does not use"):
            LLM(pairs.pair("llama").path, draft=draft, learn=path)
    with pytest.raises(InputError, match="learn is 5: give a file's name"):
        LLM(pairs.pair("llama").path, learn=5)
    path.write_text("something else")
    with pytest.raises(InputError, match="is not a draft correction: name another file"):
        LLM(pairs.pair("llama").path, learn=path)
    assert path.read_text() == "something else"


def test_off_unless_asked(pairs):
    llm = pairs.llm("llama", ENGINES[0], "model")
    assert llm.generate(SHORT_PROMPT, max_new_tokens=5).learned is None
