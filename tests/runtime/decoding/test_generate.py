"""Tests of generated text: on every engine, drafts never change it."""

from __future__ import annotations

import random

import pytest
from drafts import SIZES, adds_up, engines
from pairs import ENGINES, LONG_PROMPT, NEW_TOKENS, SHORT_PROMPT, logits_of

from edgespec.api import texts as texts_module
from edgespec.runtime.decoding.generate import PROMPT, Limits, generate
from edgespec.runtime.decoding.pipelines import Serial
from edgespec.runtime.drafters import TreeBudget
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT

ARCHITECTURES = ("gpt_oss", "llama", "qwen2", "qwen3", "qwen3_moe")
# Whose layers differ: keys of other layers, partly rotated heads, norms behind RoPE, norms that
# subtract the mean.
OTHERS = ("gemma4_text", "glm4", "hunyuan_v1_dense", "phi3", "stablelm")
DRAFTED = ("model", "parallel", "lookup", "recycling", "auto")
SAMPLING = [
    {"temperature": 0.7},
    {"temperature": 2.5},
    {"temperature": 3.0, "top_k": 4},
    {"temperature": 3.0, "top_p": 0.8},
    {"temperature": 3.0, "min_p": 0.1},
    {"temperature": 1.5, "repetition_penalty": 1.15},
    {"repetition_penalty": 1.3},
    {"temperature": 2.0, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.1},
]


@pytest.mark.slow
@engines
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_text_is_transformers_own_for_every_draft(pairs, name, engine):
    expected = pairs.greedy(name)
    for draft, sizes in SIZES.items():
        llm = pairs.llm(name, engine, draft)
        accepted = 0
        for nodes, width in sizes:
            result = llm.generate(
                LONG_PROMPT, max_new_tokens=NEW_TOKENS, num_assistant_tokens=nodes, tree_width=width
            )
            assert result.tokens == expected, (draft, nodes, width)
            assert result.finish_reason == "length"
            assert result.draft == draft
            assert result.engine == engine
            assert result.draft_engine == (
                engine if draft in ("model", "parallel", "auto") else None
            )
            assert adds_up(result)
            assert nodes or not result.drafted
            accepted += result.accepted
        assert accepted > 0 or draft == "none"


@pytest.mark.slow
@engines
@pytest.mark.parametrize("name", OTHERS)
def test_so_it_is_for_other_layers(pairs, name, engine):
    expected = pairs.greedy(name)
    for draft in ("none", "model", "lookup"):
        result = pairs.llm(name, engine, draft).generate(
            LONG_PROMPT, max_new_tokens=NEW_TOKENS, num_assistant_tokens=7, tree_width=4
        )
        assert result.tokens == expected, draft
        assert result.accepted > 0 or draft != "model"


@pytest.mark.slow
@engines
@pytest.mark.parametrize("fields", SAMPLING, ids=str)
def test_sampled_text_is_the_same_for_every_draft(pairs, engine, fields):
    options = {**fields, "seed": 5, "max_new_tokens": NEW_TOKENS}
    plain = pairs.llm("llama", engine, "none").generate(LONG_PROMPT, **options)
    accepted = 0
    for draft, width in (("model", 1), *((draft, 4) for draft in DRAFTED)):
        llm = pairs.llm("llama", engine, draft)
        result = llm.generate(LONG_PROMPT, tree_width=width, **options)
        assert result.tokens == plain.tokens, (draft, width)
        assert result.text == plain.text
        assert result.seed == 5
        assert adds_up(result)
        accepted += result.accepted
    assert accepted > 0
    # And it is what the rule chooses from the logits that transformers computes for this text.
    prompt = pairs.llm("llama", engine, "none").tokenizer.encode(LONG_PROMPT)
    text = [*prompt, *plain.tokens]
    logits = logits_of(pairs.pair("llama").target, text)
    sampler = Sampler(SamplingOptions(**fields, seed=5), logits.shape[1])
    chosen = [
        sampler.choose(logits[place - 1], place, text[:place])
        for place in range(len(prompt), len(text))
    ]
    assert chosen == plain.tokens


@engines
@pytest.mark.parametrize("fields", [{}, {"temperature": 2.5, "seed": 3}], ids=str)
def test_what_a_draft_equal_to_the_target_proposes_is_always_accepted(pairs, engine, fields):
    llm = pairs.llm("twin", engine, "model")
    chain = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, tree_width=1, **fields)
    assert chain.accepted == chain.drafted
    assert chain.mean_accepted_length > 3
    tree = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, tree_width=4, **fields)
    assert tree.tokens == chain.tokens
    assert tree.mean_accepted_length > 3


@engines
@pytest.mark.parametrize("nodes", [1, 3, 7, 16])
def test_every_round_of_an_unhesitating_twin_is_full(pairs, engine, nodes, monkeypatch):
    monkeypatch.setattr(texts_module, "_FIXED_LEAST_GAIN", 0.0)
    llm = pairs.llm("twin", engine, "model")
    result = llm.generate(
        LONG_PROMPT, max_new_tokens=NEW_TOKENS, num_assistant_tokens=nodes, tree_width=1
    )
    assert result.tokens == pairs.greedy("twin")
    assert result.rounds == -(-(NEW_TOKENS - 1) // (nodes + 1))
    assert result.accepted == result.drafted


@pytest.mark.parametrize("target_engine", ENGINES)
def test_the_draft_may_run_on_another_engine(pairs, target_engine):
    [draft_engine] = set(ENGINES) - {target_engine}
    llm = pairs.llm("llama", target_engine, "model", draft_device=draft_engine)
    for fields in ({}, {"temperature": 2.5, "seed": 1}):
        result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
        same = pairs.llm("llama", target_engine, "model").generate(
            LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields
        )
        assert result.tokens == same.tokens


@pytest.mark.slow
@engines
def test_half_precision_caches(pairs, engine):
    """Their rounding moves logits by less than the smallest lead in this text."""
    for draft in SIZES:
        result = pairs.llm("half", engine, draft).generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
        assert result.tokens == pairs.greedy("half")
    sampled = [
        pairs.llm("half", engine, draft)
        .generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, temperature=2.5, seed=2)
        .tokens
        for draft in SIZES
    ]
    assert all(tokens == sampled[0] for tokens in sampled)


@engines
def test_a_draft_of_another_kind_that_is_outgrown(pairs, engine):
    """The draft knows 100 positions and sees the end of a longer text."""
    llm = pairs.llm("stranger", engine, "model")
    for prompt in (SHORT_PROMPT, LONG_PROMPT):
        result = llm.generate(prompt, max_new_tokens=NEW_TOKENS)
        assert result.tokens == pairs.greedy("stranger", prompt)
        assert result.prompt_tokens + NEW_TOKENS > 100
        assert result.drafted > result.rounds


class Oracle:
    """A drafter that knows the text and hides its continuation in a random tree."""

    name = "oracle"

    def __init__(self, text, seed):
        self._text = text
        self._random = random.Random(seed)

    def begin(self, prompt, sampler):
        self.trees = []

    def draft(self, text, budget):
        assert text == self._text[: len(text)]
        proposal, path = Proposal(), {ROOT: list(text)}
        for _ in range(self._random.randint(0, budget.max_nodes)):
            parent = self._random.choice(sorted(path)[-3:])
            before = path[parent]
            right = before == self._text[: len(before)] and len(before) < len(self._text)
            guess = self._random.randrange(331)
            token = self._text[len(before)] if right and self._random.random() < 0.8 else guess
            if len(before) - len(text) < budget.max_depth:
                path[proposal.add(parent, token, 0.5, self.name)] = [*before, token]
        self.trees.append((len(text), proposal.tree()))
        return proposal

    def observe(self, verdict, tree, logits):
        pass


@engines
@pytest.mark.parametrize("seed", range(6))
def test_trees_of_any_shape_yield_the_text_and_end_with_it(pairs, engine, seed):
    expected = pairs.greedy("qwen3")
    llm = pairs.llm("qwen3", engine, "none")
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    oracle = Oracle([*prompt, *expected], seed)
    # By turns the context and the number of new tokens end the text.
    limits = Limits(100 + seed % 2 * 900, len(prompt) + 100 + (1 - seed % 2) * 900, frozenset())
    rounds = list(
        generate(
            Serial(Runner(llm.target), oracle), Sampler(SamplingOptions(), 331), prompt,
            limits=limits, budget=TreeBudget(16, 12, 4),
        )
    )  # fmt: skip
    assert [token for step in rounds for token in step.tokens] == expected[:100]
    assert sum(step.accepted for step in rounds) > 40
    for length, tree in oracle.trees:
        # All of the deepest branch and the token after it find their place in the text.
        assert length + max(tree.depths, default=0) + 1 <= len(prompt) + 100
    drafted = [step.drafted for step in rounds if step.source != PROMPT]
    assert drafted == [len(tree) for _, tree in oracle.trees]
