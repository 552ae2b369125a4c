"""Text end to end: what is drafted, on whatever engine, never changes it."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from pairs import (
    ENGINES,
    LONG_PROMPT,
    NEW_TOKENS,
    SHORT_PROMPT,
    greedy_by_transformers,
    logits_of,
    with_eos,
)

from edgespec import LLM
from edgespec import llm as llm_module
from edgespec.errors import ContextLengthError, InputError
from edgespec.options import GenerationOptions, LoadOptions
from edgespec.runtime.drafters import TreeBudget
from edgespec.runtime.generate import PROMPT, Limits, generate
from edgespec.runtime.pipelines import Serial
from edgespec.runtime.proposal import Proposal
from edgespec.runtime.runner import Runner
from edgespec.runtime.sampling import Sampler, SamplingOptions
from edgespec.runtime.tree import ROOT

ARCHITECTURES = ("llama", "qwen2", "qwen3")
# Draft tokens and tree width; only a draft model's trees have a width.
SIZES = {
    "none": [(7, 4)],
    "model": [(0, 1), (1, 4), (3, 1), (3, 2), (7, 1), (7, 4), (16, 2), (16, 4)],
    "lookup": [(0, 4), (1, 4), (3, 4), (7, 4), (16, 4)],
    "recycling": [(0, 4), (1, 1), (3, 2), (7, 4), (16, 4)],
    "auto": [(0, 4), (1, 4), (7, 1), (7, 4), (31, 4)],
}
DRAFTED = ("model", "lookup", "recycling", "auto")
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
engines = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(scope="module")
def reference(pairs):
    """Transformers' greedy text of a pair's target: prompt and new tokens."""
    made = {}

    def text(name, prompt=LONG_PROMPT):
        if (name, prompt) not in made:
            ids = pairs.llm(name, ENGINES[0], "none").tokenizer.encode(prompt)
            made[name, prompt] = greedy_by_transformers(pairs.pair(name).target, ids)
        return made[name, prompt]

    return text


def adds_up(result):
    """Each round brings its accepted tokens and one more."""
    assert result.new_tokens == len(result.tokens)
    assert result.accepted + result.rounds + 1 == result.new_tokens
    assert result.drafted >= result.accepted
    if result.rounds:
        mean = (result.new_tokens - 1) / result.rounds
        assert result.mean_accepted_length == pytest.approx(mean, abs=1e-3)
    return True


# The text


@engines
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_text_is_transformers_own_for_every_draft(pairs, reference, name, engine):
    expected = reference(name)
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
            assert result.draft_engine == (engine if draft in ("model", "auto") else None)
            assert adds_up(result)
            assert nodes or not result.drafted
            accepted += result.accepted
        assert accepted > 0 or draft == "none"


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
def test_every_round_of_an_unhesitating_twin_is_full(pairs, reference, engine, nodes, monkeypatch):
    monkeypatch.setattr(llm_module, "_FIXED_LEAST_GAIN", 0.0)
    llm = pairs.llm("twin", engine, "model")
    result = llm.generate(
        LONG_PROMPT, max_new_tokens=NEW_TOKENS, num_assistant_tokens=nodes, tree_width=1
    )
    assert result.tokens == reference("twin")
    assert result.rounds == -(-(NEW_TOKENS - 1) // (nodes + 1))
    assert result.accepted == result.drafted


@pytest.mark.parametrize("target_engine", ENGINES)
def test_the_draft_may_run_on_another_engine(pairs, reference, target_engine):
    [draft_engine] = set(ENGINES) - {target_engine}
    llm = pairs.llm("llama", target_engine, "model", draft_device=draft_engine)
    for fields in ({}, {"temperature": 2.5, "seed": 1}):
        result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
        same = pairs.llm("llama", target_engine, "model").generate(
            LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields
        )
        assert result.tokens == same.tokens


@engines
def test_half_precision_caches(pairs, reference, engine):
    """Their rounding moves logits by a fraction of the least lead in this text."""
    for draft in SIZES:
        result = pairs.llm("half", engine, draft).generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
        assert result.tokens == reference("half")
    sampled = [
        pairs.llm("half", engine, draft)
        .generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, temperature=2.5, seed=2)
        .tokens
        for draft in SIZES
    ]
    assert all(tokens == sampled[0] for tokens in sampled)


@engines
def test_a_draft_of_another_kind_that_is_outgrown(pairs, reference, engine):
    llm = pairs.llm("stranger", engine, "model")
    result = llm.generate(SHORT_PROMPT, max_new_tokens=NEW_TOKENS)
    assert result.tokens == reference("stranger", SHORT_PROMPT)
    # It knows 100 positions; no tree reaches beyond them.
    assert 0 < result.drafted < 7 * (100 - result.prompt_tokens)
    assert llm.generate(LONG_PROMPT, max_new_tokens=8).drafted == 0


class Oracle:
    """Knows the text, and hides its continuation in a random tree."""

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
def test_trees_of_any_shape_yield_the_text_and_end_with_it(pairs, reference, engine, seed):
    expected = reference("qwen3")
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


# Where it ends


@pytest.fixture(scope="module")
def stopping(pairs, reference, tmp_path_factory):
    """Bundles with two ends of text, which come up after some 60 tokens."""
    expected = reference("twin")
    [last] = [t for t in expected[60:] if t not in expected[:60]][:1]
    length = expected.index(last) + 1
    never = next(t for t in range(331) if t not in expected)
    folder = tmp_path_factory.mktemp("eos")
    made = {}
    for ids in ((last,), (never, last), (last, never)):
        made[ids] = with_eos(pairs.pair("twin").path, folder / f"eos{len(made)}", *ids)
    return made, expected[:length]


@pytest.mark.parametrize("draft", SIZES)
def test_each_end_of_text_token_ends_it(stopping, draft, monkeypatch):
    monkeypatch.setattr(llm_module, "_FIXED_LEAST_GAIN", 0.0)
    bundles, expected = stopping
    assert 60 < len(expected) < NEW_TOKENS
    for path in bundles.values():
        llm = LLM(path, device=ENGINES[0], draft_device=ENGINES[0], draft=draft, threads=1)
        inside = 0
        for nodes in (1, 2, 3, 4, 5, 6, 7):
            result = llm.generate(
                LONG_PROMPT, max_new_tokens=NEW_TOKENS, num_assistant_tokens=nodes, tree_width=1
            )
            assert result.tokens == expected
            assert result.finish_reason == "stop"
            # No free token follows an end that was in the tree.
            free = result.new_tokens - 1 - result.accepted
            assert free in (result.rounds, result.rounds - 1)
            inside += free < result.rounds
        assert inside or draft != "model"


@pytest.mark.parametrize("draft", SIZES)
def test_one_token(pairs, reference, draft):
    result = pairs.llm("llama", ENGINES[0], draft).generate(LONG_PROMPT, max_new_tokens=1)
    assert result.tokens == reference("llama")[:1]
    assert result.finish_reason == "length"
    assert (result.rounds, result.drafted, result.mean_accepted_length) == (0, 0, 0.0)
    assert (result.tpot_ms, result.tokens_per_second) == (0.0, 0.0)
    assert result.ttft_ms > 0


@engines
@pytest.mark.parametrize("draft", SIZES)
def test_the_context_ends_a_text(pairs, reference, engine, draft):
    expected = reference("twin")
    ids = pairs.llm("twin", ENGINES[0], "none").tokenizer.encode(LONG_PROMPT)
    for left in (1, 2, 3, 9, 30):
        llm = pairs.llm("twin", engine, draft, context=len(ids) + left)
        for nodes, width in ((7, 4), (16, 1)):
            result = llm.generate(
                LONG_PROMPT, max_new_tokens=NEW_TOKENS, num_assistant_tokens=nodes, tree_width=width
            )
            assert result.tokens == expected[:left]
            assert result.finish_reason == "context"
            assert adds_up(result)
    assert llm.generate(LONG_PROMPT, max_new_tokens=30).finish_reason == "length"


def test_the_models_own_context_is_used_to_its_end(pairs):
    texts = []
    for draft in ("none", "model", "lookup"):
        llm = pairs.llm("twin", ENGINES[0], draft)
        assert llm.context_length == 512
        result = llm.generate([*range(20, 220), *range(20, 220)], max_new_tokens=10_000)
        assert result.finish_reason == "context"
        assert result.new_tokens == 112
        texts.append(result.tokens)
    assert texts[0] == texts[1] == texts[2]


def test_prompts_that_do_not_fit(pairs):
    llm = pairs.llm("llama", ENGINES[0], "model", context=20)
    assert llm.generate([5] * 19, max_new_tokens=9).finish_reason == "context"
    for length in (20, 21, 600):
        with pytest.raises(ContextLengthError, match=f"{length} tokens and the context holds 20"):
            llm.generate([5] * length)


@pytest.mark.parametrize("draft", ["model", "lookup"])
@pytest.mark.parametrize("fields", [{}, {"temperature": 2.5, "seed": 4}], ids=str)
def test_stop_strings_end_it_wherever_tokens_begin(pairs, draft, fields):
    plain = pairs.llm("twin", ENGINES[0], "none")
    llm = pairs.llm("twin", ENGINES[0], draft)
    whole = plain.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
    borders = set(
        itertools.accumulate(len(plain.tokenizer.decode([token])) for token in whole.tokens)
    )
    across = 0
    for start in range(3, len(whole.text) - 4, 17):
        stop = whole.text[start : start + 4]
        options = {"max_new_tokens": NEW_TOKENS, "stop": ("never there", stop), **fields}
        expected = plain.generate(LONG_PROMPT, **options)
        assert expected.text == whole.text[: whole.text.find(stop)]
        assert expected.finish_reason == "stop"
        assert expected.tokens == whole.tokens[: expected.new_tokens]
        result = llm.generate(LONG_PROMPT, **options)
        assert (result.text, result.tokens) == (expected.text, expected.tokens)
        assert result.finish_reason == "stop"
        assert result.new_tokens == len(result.tokens)
        across += not borders.isdisjoint(range(start + 1, start + 4))
    assert across


# The stream


@pytest.mark.parametrize("draft", SIZES)
def test_pieces_are_the_text(pairs, draft):
    llm = pairs.llm("twin", ENGINES[0], draft)
    text = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS).text
    held_back = tuple(text[start : start + 6] + "\0" for start in (9, 30, len(text) - 6))
    stream = llm.stream(LONG_PROMPT, max_new_tokens=NEW_TOKENS, stop=held_back)
    with pytest.raises(InputError, match="no result yet"):
        _ = stream.result
    pieces = list(stream)
    assert all(pieces)
    assert "".join(pieces) == stream.result.text
    assert stream.result.text == text
    whole = llm.tokenizer.decode([*llm.tokenizer.encode(LONG_PROMPT), *stream.result.tokens])
    assert LONG_PROMPT + text == whole


@pytest.mark.parametrize("draft", ["none", "model"])
def test_cancelling_ends_the_text_after_the_round(pairs, reference, draft):
    llm = pairs.llm("llama", ENGINES[0], draft)
    stream = llm.stream(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    pieces = [next(iter(stream)) for _ in range(3)]
    stream.cancel()
    pieces += stream
    result = stream.result
    assert result.finish_reason == "cancelled"
    assert result.tokens == reference("llama")[: result.new_tokens]
    assert result.new_tokens < NEW_TOKENS
    assert "".join(pieces) == result.text
    at_once = llm.stream(LONG_PROMPT)
    at_once.cancel()
    list(at_once)
    assert at_once.result.tokens == []
    assert at_once.result.finish_reason == "cancelled"


@engines
def test_streams_of_one_model_may_take_turns(pairs, engine):
    llm = pairs.llm("llama", engine, "model")
    jobs = [
        (LONG_PROMPT, {"temperature": 2.5, "seed": 1}),
        (SHORT_PROMPT, {}),
        ("import os", {"temperature": 1.0, "seed": 2}),
    ]
    alone = [llm.generate(prompt, max_new_tokens=60, **fields) for prompt, fields in jobs]
    streams = [llm.stream(prompt, max_new_tokens=60, **fields) for prompt, fields in jobs]
    for _ in itertools.zip_longest(*streams):
        pass
    for stream, expected in zip(streams, alone, strict=True):
        assert stream.result.tokens == expected.tokens
        assert stream.result.drafted == expected.drafted


# What goes in and comes out


def test_token_ids_are_a_prompt(pairs, reference):
    llm = pairs.llm("llama", ENGINES[0], "model")
    ids = llm.tokenizer.encode(LONG_PROMPT)
    for prompt in (ids, tuple(ids), np.array(ids).tolist()):
        result = llm.generate(prompt, max_new_tokens=5)
        assert result.tokens == reference("llama")[:5]
        assert result.prompt_tokens == len(ids)
    for wrong in (-1, 331):
        with pytest.raises(InputError, match=f"token id {wrong} is not in the vocabulary of 331"):
            llm.generate([1, wrong])


def test_prompts_of_nothing_are_refused(pairs):
    for prompt in ("", []):
        with pytest.raises(InputError, match="the prompt is empty"):
            pairs.llm("llama", ENGINES[0], "model").generate(prompt)


def test_bytes_are_not_taken_for_ids(pairs):
    for prompt in (b"def", bytearray(b"def")):
        with pytest.raises(InputError, match="b'def', which is no text: decode it"):
            pairs.llm("llama", ENGINES[0], "model").generate(prompt)


@pytest.mark.parametrize("value", [None, 5, [None], "", [""]])
def test_stop_strings_that_are_none_are_refused(value):
    with pytest.raises(InputError, match=r"stop is .*: give strings of at least one character"):
        GenerationOptions(stop=value)


@pytest.mark.parametrize(
    ("name", "value"), [("device", None), ("draft_device", 0), ("prefix_reuse", "no")]
)
def test_load_options_of_the_wrong_type_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} is {value!r}: give "):
        LoadOptions(**{name: value})


def test_unknown_keywords_are_errors(pairs):
    llm = pairs.llm("llama", ENGINES[0], "model")
    known = r"unknown option 'max_tokens': use one of .*max_new_tokens,"
    with pytest.raises(TypeError, match=known):
        llm.generate("x", max_tokens=3)
    with pytest.raises(TypeError, match="unknown option 'max_tokens'"):
        llm.stream("x", max_tokens=3)
    with pytest.raises(TypeError, match="unknown option 'gpu': use one of device,"):
        LLM(pairs.pair("llama").path, gpu=True)


def test_the_seed_is_reported_and_brings_the_text_again(pairs):
    llm = pairs.llm("llama", ENGINES[0], "model")
    options = {"max_new_tokens": 40, "temperature": 3.0}
    drawn = llm.generate(SHORT_PROMPT, **options)
    assert llm.generate(SHORT_PROMPT, seed=drawn.seed, **options).tokens == drawn.tokens
    others = {llm.generate(SHORT_PROMPT, **options).seed for _ in range(3)}
    assert len(others | {drawn.seed}) > 1
    texts = {tuple(llm.generate(SHORT_PROMPT, seed=s, **options).tokens) for s in range(4)}
    assert len(texts) == 4


def test_times_add_up(pairs):
    result = pairs.llm("llama", ENGINES[0], "model").generate(SHORT_PROMPT, max_new_tokens=40)
    assert result.tokens_per_second == pytest.approx(1000 / result.tpot_ms, rel=0.02)
    assert 0 < result.engine_ms <= result.tpot_ms * 39 * 1.01
    assert result.peak_rss_mb > 1


def test_a_source_that_is_not_there_is_refused(pairs):
    with pytest.raises(
        InputError, match="draft is 'gpt': use one of auto, none, model, layer-skip, lookup"
    ):
        LLM(pairs.pair("llama").path, draft="gpt")
    with pytest.raises(InputError, match="has no skip sets: export it with --layer-skip auto"):
        LLM(pairs.pair("llama").path, draft="layer-skip")
    with pytest.raises(InputError, match="draft_memory is given with draft 'lookup'"):
        LLM(pairs.pair("llama").path, draft="lookup", draft_memory="memory")
