"""Drafts by models of another vocabulary: the text stays the target's, and drafts are accepted."""

from __future__ import annotations

import time

import numpy as np
import pytest
from candidates import candidates_of
from foreign import TEXTS, ForeignPairs
from pairs import ENGINES, LONG_PROMPT, with_eos
from watching import on_every_call

from edgespec import LLM
from edgespec.runtime.drafters import ModelCalls, RecodedCalls, SharedCalls, TreeBudget
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.steps import finished
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.runtime.text.translation import RecodedText, SharedText
from edgespec.runtime.text.vocabulary_map import MISSING

NAMES = ("permuted", "poorer", "greek", "letters")
SHARED = {"permuted": True, "poorer": True, "greek": False, "letters": False}
MODES = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 2.0, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 5},
    {"repetition_penalty": 1.3},
]
PROMPTS = [LONG_PROMPT, *TEXTS[1:3], "🙂"]
TOKENS = 50

names = pytest.mark.parametrize("name", NAMES)
modes = pytest.mark.parametrize("fields", MODES, ids=str)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    return ForeignPairs(tmp_path_factory.mktemp("foreign"))


@pytest.fixture(scope="module")
def loaded(foreign):
    made = {}

    def load(name, draft, **options):
        key = name, draft, *options.items()
        if key not in made:
            made[key] = foreign.llm(name, draft, **options)
        return made[key]

    return load


def draft_of(llm):
    return llm._loaded["draft"].model


def vocabularies(llm):
    return llm._texts.drafting._vocabularies


# The text


@pytest.mark.parametrize("fields", MODES[:2], ids=str)
@names
def test_drafts_never_change_the_text(loaded, name, fields):
    options = {"max_new_tokens": TOKENS, **fields}
    expected = loaded(name, "none").generate(PROMPTS[1], **options)
    llm = loaded(name, "model")
    assert vocabularies(llm).shares_enough == SHARED[name]
    result = llm.generate(PROMPTS[1], **options)
    assert result.tokens == expected.tokens
    assert result.drafted > 0


@pytest.mark.slow
@modes
@names
def test_nor_in_trees_of_all_sizes(loaded, name, fields):
    options = {"max_new_tokens": TOKENS, **fields}
    for prompt in PROMPTS:
        expected = loaded(name, "none").generate(prompt, **options).tokens
        for draft, nodes, width in (("model", 3, 1), ("model", 16, 4), ("auto", None, 4)):
            sizes = {"num_assistant_tokens": nodes, "tree_width": width}
            result = loaded(name, draft).generate(prompt, **sizes, **options)
            assert result.tokens == expected, (prompt, draft, nodes)
            assert result.drafted > 0
            assert result.accepted + result.rounds + 1 == result.new_tokens


@pytest.mark.slow
@modes
@names
def test_nor_while_the_target_works(loaded, name, fields, monkeypatch):
    options = {"max_new_tokens": TOKENS, **fields}
    expected = loaded(name, "none").generate(LONG_PROMPT, **options)
    llm = loaded(name, "model", pipeline="overlap")
    # A pass of so small a target could end before the draft's thread has run at all.
    on_every_call(monkeypatch, llm, "target", lambda _: time.sleep(0.01))
    result = llm.generate(LONG_PROMPT, **options)
    assert result.tokens == expected.tokens
    if name == "permuted":
        assert result.begun > 0


@pytest.mark.parametrize("name", ["permuted", "letters"])
def test_nor_in_text_of_a_grammar(foreign, tmp_path, name):
    path = with_eos(foreign.path(name), tmp_path / "bundle", 0)
    place = {"device": ENGINES[0], "threads": 1}
    options = {"max_new_tokens": 40, "regex": "[a-z]{4}(é|🙂){3}[0-9 ]{9}"}
    made = [
        LLM(path, draft=draft, **place).generate(LONG_PROMPT, **options).tokens
        for draft in ("none", "model", "auto")
    ]
    assert made[0] == made[1] == made[2]
    assert len(made[0]) > 16


@pytest.mark.slow
@names
def test_nor_in_sessions_and_in_what_is_saved_of_them(foreign, loaded, tmp_path, name):
    plain, options = loaded(name, "none"), {"max_new_tokens": 30, "seed": 3, "temperature": 0.8}
    text = plain.tokenizer.encode(LONG_PROMPT)
    for draft in ("model", "auto"):
        llm = foreign.llm(name, draft)
        session = llm.session()
        prompt = list(text)
        for more in ("", " and 🙂", "é"):
            prompt += llm.tokenizer.encode(more)
            made = session.generate(prompt, **options).tokens
            assert made == plain.generate(prompt, **options).tokens
            prompt += made
        session.save(tmp_path / "session")
        other = foreign.llm(name, draft).load_session(tmp_path / "session")
        assert other._slot.runners["draft"].tokens == session._slot.runners["draft"].tokens
        assert other.generate(prompt, **options).tokens == plain.generate(prompt, **options).tokens


# Acceptance


@modes
def test_the_same_model_in_other_ids_drafts_the_same(loaded, fields):
    """In sampled text too, because the noise belongs to the target's ids."""
    for prompt in PROMPTS[:2]:
        own, other = (
            loaded(name, "model").generate(prompt, max_new_tokens=TOKENS, **fields)
            for name in ("same", "permuted")
        )
        assert vocabularies(loaded("same", "model")) is None
        assert (other.rounds, other.drafted, other.accepted) == (
            own.rounds, own.drafted, own.accepted,
        )  # fmt: skip
        assert own.accepted > (0 if "repetition_penalty" in fields else 30)


def test_of_the_same_model_greedy_text_is_accepted_when_tokenized_again(loaded):
    for prompt in PROMPTS[:2]:
        result = loaded("letters", "model").generate(prompt, max_new_tokens=TOKENS)
        assert result.accepted > 35


def test_a_poorer_draft_is_accepted_above_chance(loaded):
    result = loaded("poorer", "model").generate("def twice(x):\n", max_new_tokens=TOKENS)
    assert result.accepted > 15


# Calls in other tokens


def test_a_level_is_that_of_the_target_itself(loaded):
    """The permuted draft says in its tokens what the target says in its own."""
    llm = loaded("permuted", "model")
    text = llm.tokenizer.encode(LONG_PROMPT)
    calls = SharedCalls(ModelCalls(Runner(draft_of(llm))), vocabularies(llm))
    calls.begin(text[:-1], Sampler(SamplingOptions(), 331))
    assert calls.unread(text) == ModelCalls(Runner(draft_of(llm))).unread(text)
    assert not calls.slide(text)
    found = finished(calls.feed(text))
    logits = Runner(llm.target).prefill(text)["logits"][:, :331]
    expected = candidates_of(logits, found.tokens.shape[1])
    assert found.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-3)
    np.testing.assert_allclose(found.normalizers, expected.normalizers, atol=1e-3)


class Told:
    """Calls that return the candidates they were made with."""

    most_rows = 8

    def __init__(self, found):
        self.found = found

    def level(self, rows):
        yield from ()
        return self.found


def test_probabilities_are_those_among_the_shared_tokens(loaded):
    llm = loaded("poorer", "model")
    both = vocabularies(llm)
    logits = np.random.default_rng(0).normal(0, 3, (3, len(both.draft.pieces)))
    lacking = np.flatnonzero(both.to_target == MISSING)
    assert len(lacking)
    logits[1, lacking] += 9  # most of the probability is not to be had
    found = SharedCalls(Told(candidates_of(logits)), both)._shared(candidates_of(logits))
    shared = np.flatnonzero(both.to_target != MISSING)
    among = np.exp(logits[:, shared])
    among /= among.sum(axis=1, keepdims=True)
    for row in range(3):
        order = np.argsort(-among[row], kind="stable")
        assert found.tokens[row].tolist() == both.to_target[shared[order]].tolist()
        share = np.exp(found.logits[row] - found.normalizers[row])
        np.testing.assert_allclose(share, among[row][order], rtol=2e-2)


def test_a_row_without_shared_candidates_promises_nothing(loaded):
    both = vocabularies(loaded("poorer", "model"))
    lacking = np.flatnonzero(both.to_target == MISSING)[:3]
    shared = np.flatnonzero(both.to_target != MISSING)[:3]
    found = candidates_of(np.zeros((2, 3)))
    found.tokens[:] = [lacking, shared]
    made = SharedCalls(Told(found), both)._shared(found)
    assert made.tokens.shape == (2, 1)
    assert np.all(both.to_draft[made.tokens] != MISSING)  # they can be run
    share = np.exp(made.logits[:, 0] - made.normalizers)
    assert share[0] < 1e-9
    assert share[1] == pytest.approx(1 / 3, rel=1e-3)


def drafter_of(llm, runner):
    drafting = llm._texts.drafting
    return drafting._model(drafting._calls({"draft": runner}), llm._learned.state, sampled=False)


@names
def test_the_draft_reads_the_text_once(loaded, name):
    """What it has run of accepted drafts, or for earlier texts, is not run again."""
    llm = loaded(name, "model")
    both, runner = vocabularies(llm), Runner(draft_of(llm))
    drafter = drafter_of(llm, runner)
    text = llm.tokenizer.encode(LONG_PROMPT)
    made = loaded(name, "none").generate(text, max_new_tokens=TOKENS).tokens
    whole = (SharedText if SHARED[name] else RecodedText)(both).read([*text, *made])
    sampler, fed = Sampler(SamplingOptions(), llm.tokenizer.vocab_size), []
    drafter.begin(text, sampler)
    for count in range(1, TOKENS):
        drafter.draft([*text, *made[:count]], TreeBudget(4, 2, 2))
        fed.append(sum(drafter.fed))
        first = drafter._calls._calls._first if SHARED[name] else drafter._drafter._calls._first
        assert (
            runner.tokens
            == (drafter._calls._text if SHARED[name] else drafter._recoded).read(
                [*text, *made[:count]]
            )[first:]
        )
    if name != "poorer":  # whose window moves on
        assert sum(fed) < len(whole) * 1.5
    again = drafter_of(llm, runner)
    again.begin([*text, *made[:-1]], sampler)
    assert sum(again.unread([*text, *made])) < (60 if name == "poorer" else 20)


def test_an_end_that_changes_is_read_again(loaded):
    llm = loaded("letters", "model")
    runner = Runner(draft_of(llm))
    calls = RecodedCalls(runner)
    calls.begin([1, 2, 3], Sampler(SamplingOptions(), 257))
    for text, discarded, unread in (
        ([1, 2, 3, 4], False, 4),
        ([1, 2, 3, 5], True, 1),
        ([1, 2, 3, 5], False, 1),  # nothing new: its last token is read again for its candidates
        ([1, 9], True, 1),
        ([8, 9, 7], True, 3),
    ):
        assert calls.unread(text) == [unread]
        assert calls.slide(text) == discarded
        assert calls.unread(text) == [unread]
        found = finished(calls.feed(text))
        assert runner.tokens == text
        fresh = ModelCalls(Runner(draft_of(llm)))
        fresh.begin(text[:-1], Sampler(SamplingOptions(), 257))
        assert found.tokens[0, :5].tolist() == finished(fresh.feed(text)).tokens[0, :5].tolist()


def test_a_text_with_more_tokens_in_the_draft_keeps_to_the_memory_that_was_planned(foreign):
    """The Greek draft spells this text byte by byte."""
    llm, plain = (foreign.llm("greek", draft, context=256) for draft in ("model", "none"))
    prompt = llm.tokenizer.encode(LONG_PROMPT * 2)[:150]
    with llm.session() as session:
        result = session.generate(prompt, max_new_tokens=80)
        runner = session._slot.runners["draft"]
        assert runner._caches[0].capacity <= draft_of(llm).sizes.cache_rows
    assert result.drafted > 0
    assert result.tokens == plain.generate(prompt, max_new_tokens=80).tokens
