"""Texts drafted by a head: never changed by it, wherever its rows and features come from."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest
from candidates import Trusting
from drafts import adds_up
from heads import features_of
from pairs import ENGINES, LONG_PROMPT, NEW_TOKENS, SHORT_PROMPT, with_eos
from safetensors.numpy import load_file, save_file
from sessions import turns

from edgespec import LLM
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.decoding.pipelines import Overlap
from edgespec.runtime.drafters import HeadCalls, ModelDrafter, TreeBudget
from edgespec.runtime.execution.features import FeatureWindow
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.execution.head_runner import HeadRunner
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.steps import finished
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions

PLACES = ("head", "head-cut", "head-skip")
DRAFTED = ("head", "auto")
TEXTS = ({}, {"temperature": 2.5, "seed": 3}, {"repetition_penalty": 1.3})
OPTIONS = {"max_new_tokens": 40, "seed": 3}


def load(pairs, draft="head", name="head", **options):
    """Load a bundle of the test's own, so that its sessions do not affect other tests."""
    place = {"device": ENGINES[0], "draft_device": ENGINES[0], "threads": 1}
    return LLM(pairs.pair(name).path, draft=draft, **{**place, **options})


def fresh(pairs, prompt, **options):
    """Returns the text of a prompt without drafts and without a session."""
    return pairs.llm("head", ENGINES[0], "none").generate(prompt, **{**OPTIONS, **options}).tokens


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", PLACES)
def test_a_head_never_changes_the_text(pairs, name, engine):
    for fields in TEXTS:
        options = {**fields, "max_new_tokens": NEW_TOKENS}
        plain = pairs.llm(name, engine, "none").generate(LONG_PROMPT, **options)
        for draft in DRAFTED:
            for nodes, width in ((3, 1), (16, 4)):
                result = pairs.llm(name, engine, draft).generate(
                    LONG_PROMPT, num_assistant_tokens=nodes, tree_width=width, **options
                )
                assert result.tokens == plain.tokens, (draft, fields, nodes)
                assert adds_up(result)
                assert result.draft_engine == engine
                assert result.accepted > 0 or fields


@pytest.mark.parametrize("engine", ENGINES)
def test_greedy_text_is_transformers_own(pairs, engine):
    result = pairs.llm("head", engine, "head").generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    assert result.tokens == pairs.greedy("head")
    # Otherwise the tests of this file would hardly commit a drafted row.
    assert result.mean_accepted_length > 2


# Features


@pytest.mark.parametrize(
    ("name", "draft"),
    [*product(PLACES, ("none", *DRAFTED)), ("head-skip", "layer-skip")],
)
def test_features_of_a_text_are_those_of_one_pass(pairs, name, draft):
    """Prompt chunks, tree rows and rows that a layer-skip draft has run give the same."""
    llm = load(pairs, draft, name)
    with llm.session() as session:
        session.generate(LONG_PROMPT, max_new_tokens=60, num_assistant_tokens=8)
        runner = session._slot.runners[TARGET]
        held = runner.features
        assert (held.start, held.stop) == (0, runner.length)
        found = held.read(0, held.stop)
    expected = features_of(pairs.pair(name).target, runner.tokens, [2, 4, 5]).numpy()
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_a_bundle_without_a_head_keeps_no_features(pairs):
    assert Runner(pairs.llm("llama", ENGINES[0], "none").target).features is None


def test_the_window_holds_the_last_rows():
    rows = np.arange(60, dtype=np.float32).reshape(20, 3)
    for most in (1, 4, 7, 50):
        held, known = FeatureWindow(3, most), 0
        for count in (2, 1, 5, 0, 7):
            held.append(rows[known : known + count])
            known += count
            assert (held.start, held.stop) == (max(0, known - most), known)
            assert np.array_equal(held.read(held.start, known), rows[held.start : known])
        held.truncate(known - 2)
        assert held.stop == known - 2
        held.append(rows[:1])
        assert np.array_equal(held.read(known - 2, known - 1), rows[:1])
        with pytest.raises(ValueError, match="features"):
            held.read(held.start - 1, held.stop)
    held.reset(100)
    held.append(rows[:3])
    assert (held.start, held.stop) == (100, 103)


# Rows of the head


class Calls(HeadCalls):
    """Notes how many rows are fed."""

    fed: list[int]

    def feed(self, text):
        self.fed = self.unread(text)
        return super().feed(text)


def calls_of(head, target, prompt):
    calls = Calls(head, target)
    calls.begin(prompt, Sampler(SamplingOptions(), 331))
    return calls


def drafting(llm, prompt):
    target, head = Runner(llm.target), HeadRunner(llm._loaded[DRAFT].model)
    target.prefill(prompt)
    return target, head, calls_of(head, target, prompt)


def test_rows_of_the_text_are_those_of_one_reading(pairs):
    """However the head came to its rows, its candidates are those of a fresh reading."""
    llm = load(pairs)
    text = llm.tokenizer.encode(LONG_PROMPT)[:150]
    target, head, calls = drafting(llm, text[:-1])
    expected = finished(calls.feed(text))
    logits = expected.logits.copy()
    pieces = calls_of(HeadRunner(head.model), target, text[:-1])
    for stop in (3, 90, 149, 150):
        found = finished(pieces.feed(text[:stop]))
    assert np.allclose(found.logits, logits, atol=1e-4)
    # Rows that were drafted and became text are read again, from the target's features.
    drafted = HeadRunner(head.model)
    calls = calls_of(drafted, target, text[:-1])
    finished(calls.feed(text[:100]))
    finished(calls.level(Rows([7], [0], np.ones((1, 1), np.bool_), [START])))
    calls.keep([0], [])
    assert (drafted.length, drafted.next) == (100, 99)
    found = finished(calls.feed(text))
    assert sum(calls.fed) == 50
    assert np.allclose(found.logits, logits, atol=1e-4)


def test_a_text_that_begins_otherwise_is_read_anew(pairs):
    """Equal tokens behind different ones are no reason to keep rows: the features differ."""
    llm = load(pairs)
    text = llm.tokenizer.encode(LONG_PROMPT)[:60]
    _, head, calls = drafting(llm, text[:-1])
    finished(calls.feed(text))
    cases = (
        (text, 59),
        (text[:30], 29),
        ([*text[:30], 5, *text[31:]], 29),
        ([5, *text[1:]], 0),
    )
    for other, kept in cases:
        copy = HeadRunner(head.model)
        copy.restore(head.snapshot(60))
        assert (copy.next, copy.text) == (59, text)
        copy.keep_common(other)
        assert copy.next == kept
        assert copy.text == (text[: kept + 1] if kept else [])


def test_features_that_are_gone_let_the_head_begin_later(pairs, monkeypatch):
    monkeypatch.setattr(FeatureWindow.__init__, "__defaults__", (32,))
    llm = load(pairs)
    text = llm.tokenizer.encode(LONG_PROMPT)[:150]
    target, head, calls = drafting(llm, text[:-1])
    assert target.features.start == 117
    assert sum(calls.unread(text)) == 32
    assert calls.slide(text)
    finished(calls.feed(text))
    assert (head.first, head.next) == (117, 149)
    assert not calls.slide(text)
    for fields in TEXTS:
        for draft in DRAFTED:
            with load(pairs, draft).session() as session:
                for prompt in turns(llm, 4):
                    found = session.generate(prompt, **OPTIONS | fields)
                    assert found.tokens == fresh(pairs, prompt, **fields)


def test_a_text_beyond_the_context_of_the_head(pairs):
    """It sees the end of the text, and begins anew where its positions are used up."""
    llm = load(pairs)
    model = llm._loaded[DRAFT].model
    model.role = dataclasses.replace(model.role, context_length=40)
    with llm.session() as session:
        result = session.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
        head = session._slot.runners[DRAFT]
        assert head.first > 100
        assert head.length <= 40
    assert result.tokens == pairs.greedy("head")
    assert result.accepted > 0


def test_a_tree_of_a_head_has_the_value_of_each_branch(pairs):
    """It is that of the parent times what the head, run along the branch, holds likely there."""
    llm = load(pairs)
    text = llm.tokenizer.encode(LONG_PROMPT)[:100]
    target, head, calls = drafting(llm, text[:-1])
    drafter = ModelDrafter(calls, Trusting(), "head")
    drafter.begin(text[:-1], Sampler(SamplingOptions(), 331))
    proposal = drafter.draft(text, TreeBudget(12, 4, 3))
    assert len(proposal) == 12
    assert max(map(len, (branch(proposal, node) for node in range(12)))) > 1
    for node in range(12):
        single = calls_of(HeadRunner(head.model), target, text[:-1])
        found, (*above, token) = finished(single.feed(text)), branch(proposal, node)
        value = 1.0
        for depth, each in enumerate([*above, token]):
            place = found.tokens[0].tolist().index(each)
            value *= np.exp(found.logits[0, place] - found.normalizers[0])
            mask = np.ones((1, depth + 1), np.bool_)
            found = finished(
                single.level(Rows([each], [depth], mask, [depth - 1 if depth else START]))
            )
        assert proposal.value(node) == pytest.approx(value, rel=1e-3)


def branch(proposal, node):
    parent = proposal.parents[node]
    return [*(branch(proposal, parent) if parent >= 0 else ()), proposal.tokens[node]]


# Sessions, files, forks


@pytest.mark.parametrize("draft", DRAFTED)
def test_sessions_go_on_with_their_rows(pairs, draft):
    llm = load(pairs, draft)
    with llm.session() as session:
        for prompt in turns(llm, 8):
            assert session.generate(prompt, **OPTIONS).tokens == fresh(pairs, prompt)


def test_a_session_reads_nothing_twice(pairs, monkeypatch):
    llm, read, whole = load(pairs), [], HeadRunner.read

    def noted(self, text, rows):
        read.append(len(rows))
        return whole(self, text, rows)

    monkeypatch.setattr(HeadRunner, "read", noted)
    with llm.session() as session:
        first = session.generate(LONG_PROMPT, **OPTIONS)
        text = [*llm.tokenizer.encode(LONG_PROMPT), *first.tokens]
        assert sum(read) < len(text)
        read.clear()
        session.generate([*text, 4, 5], **OPTIONS)
        assert sum(read) < 50


def test_prompts_that_begin_alike_share_rows(pairs):
    llm = load(pairs, prefix_reuse=True)
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    llm.generate(prompt, **OPTIONS)
    for other in ([*prompt, 7, 8], [*prompt[:100], 9, 9, 9], [9, *prompt]):
        assert llm.generate(other, **OPTIONS).tokens == fresh(pairs, other)
    with llm.session() as one, llm.session() as fork:
        one.generate(prompt, **OPTIONS)
        result = fork.generate([*prompt[:120], 5], **OPTIONS)
        assert result.reused == 120
        assert fork._slot.runners[DRAFT].first == 0
        assert result.tokens == fresh(pairs, [*prompt[:120], 5])


def test_a_beginning_whose_features_are_gone_is_shared(pairs, monkeypatch):
    """Its rows are copied all the same, and the head begins behind them."""
    monkeypatch.setattr(FeatureWindow.__init__, "__defaults__", (32,))
    llm = load(pairs, prefix_reuse=True)
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    with llm.session() as one, llm.session() as fork:
        one.generate(prompt, **OPTIONS)
        assert one._slot.runners[TARGET].features.start > 60
        result = fork.generate([*prompt[:60], 5], **OPTIONS)
        assert result.reused == 60
        assert result.tokens == fresh(pairs, [*prompt[:60], 5])


@pytest.mark.parametrize("saved", ["head", "none"])
def test_a_saved_session_goes_on(pairs, tmp_path, saved):
    """Without the head's rows in the file, the head reads the features that the file has."""
    llm, file = load(pairs, saved), tmp_path / "session"
    with llm.session() as session:
        session.generate(LONG_PROMPT, **OPTIONS)
        held = session.tokens
        session.save(file)
    for name in ("none", "head", "auto"):
        with load(pairs, name).load_session(file) as session:
            result = session.generate([*held, 4, 5], **OPTIONS)
            assert result.reused == len(held)
            assert result.tokens == fresh(pairs, [*held, 4, 5])
            if name == "head":
                assert session._slot.runners[DRAFT].first == 0
    with load(pairs, "head", context=64).load_session(file) as session:
        assert len(session.tokens) == 64
        result = session.generate(list(held[:50]), max_new_tokens=8)
        assert result.tokens == fresh(pairs, list(held[:50]), max_new_tokens=8)


def test_damaged_rows_of_a_head_are_refused(pairs, tmp_path):
    llm, file, bad = load(pairs), tmp_path / "session", tmp_path / "bad"
    with llm.session() as session:
        session.generate(SHORT_PROMPT, **OPTIONS)
        session.save(file)
    tensors = load_file(file)
    metadata = {"kind": "edgespec session", "version": "1", "bundle": llm.bundle.digest}
    for name, change in (
        ("draft.0", lambda rows: np.concatenate([rows, rows], 3)),
        ("draft.tokens", lambda ids: ids[:3]),
        ("target.features", lambda rows: rows[:, :5].copy()),
        ("target.features", lambda rows: rows.astype(np.float64)),
        ("target.features", lambda rows: np.concatenate([rows] * 3)),
    ):
        save_file({**tensors, name: change(tensors[name])}, bad, metadata)
        with pytest.raises(InputError, match="is damaged"):
            llm.load_session(bad)


def test_cancelled_texts_leave_rows_that_go_on(pairs):
    llm = load(pairs)
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    with llm.session() as session:
        stream = session.stream(prompt, **OPTIONS)
        for number, _ in enumerate(stream):
            if number == 5:
                stream.cancel()
        text = [*prompt, *stream.result.tokens]
        assert session.generate(text, **OPTIONS).tokens == fresh(pairs, text)


# Pipelines, devices, grammars


@pytest.mark.parametrize("fields", TEXTS, ids=str)
def test_drafting_ahead_with_a_head(pairs, fields):
    """On two engines, always ahead: rows that were drafted ahead are continued."""
    plain = pairs.llm("head", ENGINES[0], "none").generate(
        LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields
    )
    llm = load(pairs, draft_device=ENGINES[1], pipeline="overlap")
    assert llm._texts.shared.pipeline is Overlap
    stream = llm.stream(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
    assert stream.finish().tokens == plain.tokens
    assert fields or any(round_.begun for round_ in stream.rounds)


def test_texts_that_follow_a_grammar(pairs, tmp_path):
    path = with_eos(pairs.pair("head").path, tmp_path / "bundle", 0)
    options = {"regex": "[a-z ]{30}", "max_new_tokens": 40}
    texts = [
        LLM(path, draft=draft, threads=1).generate(SHORT_PROMPT, **options).tokens
        for draft in ("none", *DRAFTED)
    ]
    assert texts[0] == texts[1] == texts[2]


def test_a_head_that_fails_leaves_the_text(pairs, monkeypatch):
    llm, calls, run = load(pairs), iter(range(1000)), Runner._run

    def failing(self, *arguments, **keywords):
        if isinstance(self, HeadRunner) and next(calls) == 7:
            raise DeviceError("the device is gone")
        return run(self, *arguments, **keywords)

    monkeypatch.setattr(Runner, "_run", failing)
    result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    assert next(calls) > 7
    assert result.tokens == pairs.greedy("head")


# Plans


def test_the_wrong_kind_of_draft_is_refused(pairs):
    with pytest.raises(InputError, match=r"no draft model: export it with --draft, or .* head"):
        load(pairs, "model")
    with pytest.raises(InputError, match=r"no draft head: export it with --draft-head, .* model"):
        load(pairs, "head", "llama")
    llm = load(pairs, "auto")
    assert llm.draft_sources == ("auto", "none", "head", "lookup", "recycling")


def test_memory_counts_the_head_and_the_features(pairs):
    head, none = (load(pairs, draft, context=256).deployment for draft in ("head", "none"))
    [with_head], [alone] = head.devices, none.devices
    role, target = head.bundle.draft, head.bundle.target
    row, own = (2 * 4 * each.layers * each.kv_heads * each.head_dim for each in (role, target))
    assert with_head.kv - alone.kv == (256 + 128) * row
    assert alone.kv == 256 * own + 512 * 3 * 64 * 4
    assert with_head.repacked > alone.repacked
