"""Drafts of several texts that grow together: each is what it is alone, in far fewer calls."""

from __future__ import annotations

import numpy as np
import pytest
from pairs import ENGINES

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT
from edgespec.errors import DeviceError
from edgespec.runtime.decoding.drafts import SharedDrafts
from edgespec.runtime.drafters import ModelCalls, ModelDrafter, TreeBudget
from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.engines import engine
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.feeds import Feeds
from edgespec.runtime.execution.joint import JointPasses
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.steps import Chunk
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.runtime.trees.walk import Verdict


@pytest.fixture(scope="module", params=ENGINES)
def model(pairs, request):
    bundle = bundles.load(pairs.pair("llama").path)  # in float32, which rounds least
    return exactness.load(bundle, DRAFT, (engine(request.param),), 1)


@pytest.fixture
def calls(monkeypatch):
    """The texts of each call that have rows in it."""
    found, fill = [], Feeds.fill_texts

    def count(self, texts):
        found.append(sum(len(rows.tokens) > 0 for rows, _ in texts))
        fill(self, texts)

    monkeypatch.setattr(Feeds, "fill_texts", count)
    return found


def drafter_of(model, prompt, options=None):
    drafter = ModelDrafter(ModelCalls(Runner(model)), Calibration())
    drafter.begin(prompt, Sampler(options or SamplingOptions(), model.role.vocab_size))
    return drafter


class Text:
    """A text whose drafts wait in turn; `twin` drafts it alone."""

    def __init__(self, model, prompt, options=None):
        self.text = [*prompt, 3]
        self.together = drafter_of(model, prompt, options)
        self.twin = drafter_of(model, prompt, options)
        self.asked, self.proposal = None, None

    @property
    def caller(self):
        return self.together._calls._runner

    def ask(self, budget):
        self.budget, self.proposal = budget, None
        self.steps = self.together.drafting(self.text, budget)
        self.called(None, 0.0)

    def called(self, answer, seconds):
        try:
            self.asked = self.steps.send(answer)
        except StopIteration as end:
            self.asked, self.proposal = None, end.value

    def check(self, accepted):
        """The draft is the one alone; then the first nodes of its best branch become text."""
        found, expected = self.proposal, self.twin.draft(self.text, self.budget)
        assert (found.tokens, found.parents) == (expected.tokens, expected.parents)
        np.testing.assert_allclose(found.values, expected.values, rtol=1e-3)
        chain, node = [], -1
        while len(chain) < accepted and node in found.parents:
            node = found.parents.index(node)
            chain.append(node)
        verdict = Verdict(tuple(chain), (*(found.tokens[n] for n in chain), 7))
        for each in (self.together, self.twin):
            each.observe(verdict, found.tree(), np.zeros((len(found) + 1, 1), np.float32))
        self.text += verdict.tokens


def make(drafts, texts):
    """Takes all texts to the ends of their drafts; returns the number of rounds that it takes."""
    rounds = 0
    while any(each.asked is not None for each in texts):
        drafts.make(texts)
        rounds += 1
    return rounds


@pytest.mark.parametrize("options", [None, SamplingOptions(temperature=1.0, seed=3)], ids=str)
def test_texts_draft_together_what_they_draft_alone(model, calls, options):
    assert model.joins_texts
    rng, drafts = np.random.default_rng(0), SharedDrafts()
    texts = [Text(model, rng.integers(1, 330, n).tolist(), options) for n in (3, 9, 12, 5)]
    for number in range(8):
        for n, each in enumerate(texts):
            each.ask(TreeBudget(12 + n, 2 + (number + n) % 4, 3))
        calls.clear()
        make(drafts, texts)
        # One call for each level of the deepest tree, and texts leave as theirs end.
        made = [len(each.together.fed + each.together.levels) for each in texts]
        assert (len(calls), sum(calls)) == (max(made), sum(made))
        assert sorted(calls, reverse=True) == calls
        for n, each in enumerate(texts):
            each.check(accepted=(number + n) % 3)


def test_texts_come_and_go(model):
    rng, drafts, texts = np.random.default_rng(1), SharedDrafts(), []
    for _ in range(40):
        if len(texts) < 5 and rng.random() < 0.4:
            texts.append(Text(model, rng.integers(1, 330, int(rng.integers(1, 300))).tolist()))
        if texts and rng.random() < 0.1:
            drafts.leave(texts.pop(int(rng.integers(len(texts)))).caller)
        asking = [each for each in texts if rng.random() < 0.8]
        for each in asking:
            each.ask(TreeBudget(int(rng.integers(1, 20)), int(rng.integers(1, 6)), 4))
        make(drafts, asking)
        for each in asking:
            each.check(accepted=int(rng.integers(0, 4)))


def test_one_text_at_a_time_reads_a_chunk_while_others_draft(model):
    drafts = SharedDrafts()
    short, *long = (Text(model, [1 + n % 300 for n in range(rows)]) for rows in (5, 400, 300))
    chunks = sum(len([n for n in each.together.unread(each.text) if n > 16]) for each in long)
    for each in (short, *long):
        each.ask(TreeBudget(7, 3, 2))
    assert all(isinstance(each.asked, Chunk) for each in long)
    drafts.make([short, *long])
    assert short.proposal is not None
    assert [each.proposal for each in long] == [None, None]
    assert 1 + make(drafts, long) == chunks
    for each in (short, *long):
        each.check(accepted=1)


def test_a_failed_call_ends_the_drafts_of_its_texts_alone(model, monkeypatch, caplog):
    drafts = SharedDrafts()
    texts = [Text(model, [5, 6, 7 + n]) for n in range(3)]
    together = JointPasses._together

    def fails(self, table, asked):
        raise DeviceError("device lost")

    for each in texts:
        each.ask(TreeBudget(8, 4, 2))
    monkeypatch.setattr(JointPasses, "_together", fails)
    drafts.make(texts[:2])
    monkeypatch.setattr(JointPasses, "_together", together)
    drafts.make(texts[2:])
    assert [len(each.proposal) > 0 for each in texts] == [False, False, True]
    expected = "device lost: the text goes on without drafts by model"
    assert [each.message for each in caplog.records] == [expected] * 2
    texts[2].check(accepted=2)
    for each in texts:
        each.ask(TreeBudget(8, 4, 2))
    make(drafts, texts)
    assert [len(each.proposal) > 0 for each in texts] == [False, False, True]
    again = [Text(model, [5, 6, 7 + n]) for n in range(2)]  # later texts draft again
    for each in again:
        each.ask(TreeBudget(8, 4, 2))
    make(drafts, again)
    for each in again:
        each.check(accepted=2)
