"""Generation end to end, over small random pairs: tokens, prompts, options, ends and facts."""

from __future__ import annotations

from typing import get_overloads

import numpy as np
import pytest
from native_llms import loaded, with_library
from pairs import LONG_PROMPT, NEW_TOKENS, SHORT_PROMPT, logits_of, with_eos
from small_configs import RECURRENT

from edgespec import LLM
from edgespec.errors import ContextLengthError, InputError, MemoryLimitError
from edgespec.llm.llm import inside
from edgespec.llm.load import place

pytestmark = with_library

WINDOWS = "gemma2", "gpt_oss"  # layers that see 40 positions, fewer than the long prompt has
HOW = [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 4}, {"repetition_penalty": 1.3}]
hows = pytest.mark.parametrize("how", HOW, ids=["greedy", "sampled", "penalty"])


# Exactness


@pytest.mark.parametrize("name", ["llama", "gpt_oss", *RECURRENT])
def test_greedy_tokens_are_those_of_transformers(natives, pairs, name):
    expected = pairs.greedy(name)
    for source in natives(name).draft_sources:
        result = natives(name).generate(LONG_PROMPT, max_new_tokens=128, draft_source=source)
        assert result.tokens == expected, source


@hows
@pytest.mark.parametrize(
    "name", ["llama", "half", "small-caches", "stranger", "twin", *WINDOWS, *RECURRENT]
)
def test_drafts_change_no_bit(natives, name, how):
    """Log-probabilities show the bits of the rows that tokens were chosen from."""
    llm = natives(name)
    for prompt in (LONG_PROMPT, SHORT_PROMPT):
        results = [
            llm.generate(prompt, max_new_tokens=48, logprobs=3, draft_source=source, **how)
            for source in llm.draft_sources
        ]
        [plain] = [each for each in results if each.draft == "none"]
        assert len(plain.tokens) == 48
        assert (plain.drafted, plain.rounds) == (0, 47)
        for each in results:
            assert (each.tokens, each.logprobs) == (plain.tokens, plain.logprobs), each.draft
            assert each.accepted + each.rounds + 1 == each.new_tokens
    llm.forget()
    assert not any(model.pool.used for model in inside(llm).models.values())


def test_logprobs_are_the_models_own(natives, pairs):
    llm = natives("llama")
    for how in ({}, {"temperature": 1.5, "top_k": 9, "seed": 3}):
        result = llm.generate(LONG_PROMPT, logprobs=5, max_new_tokens=40, **how)
        prompt = llm.tokenizer.encode(LONG_PROMPT)
        logits = logits_of(pairs.pair("llama").target, [*prompt, *result.tokens])
        rows = logits[len(prompt) - 1 : -1].astype(np.float64)[:, : llm.tokenizer.vocab_size]
        expected = rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)
        assert [each.token for each in result.logprobs] == result.tokens
        for each, row in zip(result.logprobs, expected, strict=True):
            assert each.logprob == pytest.approx(row[each.token], abs=1e-4)
            likeliest = sorted(row, reverse=True)[:5]
            assert [value for _, value in each.top] == pytest.approx(likeliest, abs=1e-4)
    with pytest.raises(InputError, match="logprobs is -1"):
        llm.generate(LONG_PROMPT, logprobs=-1)


def test_the_seed_is_reported_and_brings_the_text_again(natives):
    llm = natives("llama")
    options = {"max_new_tokens": 40, "temperature": 3.0}
    drawn = llm.generate(SHORT_PROMPT, **options)
    assert llm.generate(SHORT_PROMPT, seed=drawn.seed, **options).tokens == drawn.tokens
    assert len({llm.generate(SHORT_PROMPT, **options).seed for _ in range(4)}) > 1
    texts = {tuple(llm.generate(SHORT_PROMPT, seed=s, **options).tokens) for s in range(4)}
    assert len(texts) == 4


# Prompts and options


def test_token_ids_are_a_prompt(natives, pairs):
    llm = natives("llama")
    ids = llm.tokenizer.encode(LONG_PROMPT)
    for prompt in (ids, tuple(ids), np.array(ids)):
        result = llm.generate(prompt, max_new_tokens=5)
        assert result.tokens == pairs.greedy("llama")[:5]
        assert result.prompt_tokens == len(ids)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([1, -1], "token id -1 is not in the vocabulary of 331"),
        ([1, 331], "token id 331 is not in the vocabulary of 331"),
        (b"def", "b'def', which is not text: decode it"),
        (memoryview(b"def"), "b'def', which is not text: decode it"),
        (None, "or token ids in one flat list"),
        ([1.0], "or token ids in one flat list"),
        (np.ones((1, 3), np.int64), "or token ids in one flat list"),
        ([{"role": "user"}], "or token ids in one flat list"),
    ],
    ids=lambda value: str(value).partition(" at ")[0],  # without addresses
)
def test_what_is_no_prompt_is_refused(natives, prompt, message):
    for use in (natives("llama").generate, natives("llama").stream):
        with pytest.raises(InputError, match=message):
            use(prompt)


def test_wrong_options_are_errors(natives, pairs):
    llm = natives("llama")
    path = pairs.pair("llama").path
    known = r"did you mean max_new_tokens\?\): use one of .*max_new_tokens,"
    with pytest.raises(TypeError, match=known):
        llm.generate("x", max_new_token=3)
    with pytest.raises(TypeError, match="unknown option 'max_new_token'"):
        llm.stream("x", max_new_token=3)
    with pytest.raises(TypeError, match=r"unknown option 'gpu'.*: use one of device,"):
        LLM(path, gpu=True)
    with pytest.raises(InputError, match="draft_memory is given, but draft 'lookup'"):
        LLM(path, draft="lookup", draft_memory="memory")
    with pytest.raises(MemoryLimitError, match=r"a context of 500 tokens needs .* and 0 MiB are"):
        LLM(path, draft="none", context=500, memory=1000)


def test_type_checkers_know_both_forms():
    one, several = get_overloads(LLM.generate)
    assert one.__annotations__["return"] == "Result"
    assert several.__annotations__["return"] == "list[Result]"


# Ends


@pytest.mark.parametrize("draft", ["none", "auto"])
def test_each_end_token_ends_a_text(pairs, tmp_path, draft):
    expected = pairs.greedy("twin")
    last = next(token for token in expected[60:] if token not in expected[:60])
    never = next(token for token in range(331) if token not in expected)
    path = with_eos(pairs.pair("twin").path, tmp_path / "bundle", never, last)
    with LLM(path, draft=draft, threads=1) as llm:
        for nodes in (1, 3, 7):
            result = llm.generate(
                LONG_PROMPT, max_new_tokens=NEW_TOKENS, num_assistant_tokens=nodes, tree_width=1
            )
            assert result.tokens == expected[: expected.index(last) + 1]
            assert result.finish_reason == "stop"


@pytest.mark.parametrize("draft", ["none", "lookup", "auto"])
def test_the_context_ends_a_text(natives, pairs, draft):
    whole = natives("llama", "none").generate(LONG_PROMPT, max_new_tokens=30).tokens
    ids = natives("llama").tokenizer.encode(LONG_PROMPT)
    for left in (1, 2, 9):
        with loaded(pairs, "llama", draft, context=len(ids) + left) as llm:
            result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
            assert (result.tokens, result.finish_reason) == (whole[:left], "context")
            with pytest.raises(ContextLengthError, match=f"context length of {len(ids) + left}"):
                llm.generate([5] * (len(ids) + left))


def test_the_models_own_context_is_used_to_its_end(pairs):
    texts = []
    for draft in ("none", "auto"):
        with LLM(pairs.pair("twin").path, draft=draft, threads=1) as llm:
            assert llm.context_length == 512
            result = llm.generate([*range(20, 220)] * 2, max_new_tokens=10_000)
            assert (result.finish_reason, result.new_tokens) == ("context", 112)
            texts.append(result.tokens)
    assert texts[0] == texts[1]


@hows
def test_stop_strings_end_it_wherever_tokens_begin(natives, how):
    llm = natives("llama")
    whole = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, draft_source="none", **how)
    for number, start in enumerate(range(3, len(whole.text) - 4, 41)):
        stop = whole.text[start : start + 4]
        options = {"max_new_tokens": NEW_TOKENS, "stop": ("never there", stop), **how}
        source = llm.draft_sources[number % len(llm.draft_sources)]
        stream = llm.stream(LONG_PROMPT, draft_source=source, logprobs=0, **options)
        result = stream.finish()
        assert (result.text, result.finish_reason) == (whole.text.partition(stop)[0], "stop")
        assert result.tokens == whole.tokens[: result.new_tokens]
        told = [each.token for each in result.logprobs]  # those of the text alone
        assert told == result.tokens[: len(told)]
        assert llm.tokenizer.decode(told).startswith(result.text)
        assert result.new_tokens == 1 + sum(len(made.tokens) for made in stream.rounds)


def test_stop_tokens_end_it(natives):
    whole = natives("llama").generate(SHORT_PROMPT, max_new_tokens=30)
    result = natives("llama").generate(SHORT_PROMPT, stop_token_ids=[whole.tokens[5]])
    assert result.finish_reason == "stop"
    assert result.tokens == whole.tokens[: whole.tokens.index(whole.tokens[5]) + 1]


# Facts


def test_one_token_has_no_speed(natives):
    result = natives("llama").generate(LONG_PROMPT, max_new_tokens=1)
    assert (result.finish_reason, result.new_tokens, result.rounds) == ("length", 1, 0)
    assert (result.tpot_ms, result.tokens_per_second, result.mean_accepted_length) == (0, 0, 0)
    assert result.ttft_ms > 0


def test_facts_add_up(natives):
    result = natives("llama").generate(SHORT_PROMPT, max_new_tokens=60)
    assert result.tokens_per_second == pytest.approx(1000 / result.tpot_ms, rel=0.02)
    assert result.peak_rss_mb > 1
    assert result.mean_accepted_length == pytest.approx(59 / result.rounds, abs=1e-3)
    assert (result.engine, result.draft_engine, result.exact) == ("cpu:native",) * 2 + (True,)


# Devices, closing, and what comes first


def test_without_the_operators_portable_graphs_run(pairs, caplog, monkeypatch, own_cache):
    monkeypatch.setattr(place, "library", lambda: None)
    monkeypatch.setattr(place, "missing_kernels", lambda: "no compiled kernels: reinstall")
    with loaded(pairs, "llama") as llm:
        assert "no compiled kernels: reinstall" in caplog.text
        for source in llm.draft_sources:
            result = llm.generate(LONG_PROMPT, max_new_tokens=128, draft_source=source)
            assert result.tokens == pairs.greedy("llama")
            assert (result.engine, result.draft_engine, result.exact) == ("cpu", "cpu", False)


def test_warming_up_makes_a_pass_of_each_model_and_leaves_no_slot(natives):
    llm = natives("llama")
    llm.forget()
    before = [model.seconds for model in inside(llm).models.values()]
    llm.warm_up()
    assert all(m.seconds > s for m, s in zip(inside(llm).models.values(), before, strict=True))
    assert not any(model.pool.used for model in inside(llm).models.values())


def test_a_closed_model_is_not_used(pairs):
    llm = loaded(pairs, "llama")
    stream = llm.stream(LONG_PROMPT, max_new_tokens=200)
    waiting = llm.stream(LONG_PROMPT)
    session = llm.session()
    next(iter(stream))
    llm.close()
    llm.close()
    assert stream.finish().finish_reason == "cancelled"
    for use in (
        lambda: llm.generate(SHORT_PROMPT),
        llm.session,
        waiting.finish,
        lambda: session.tokens,
        llm.warm_up,
        lambda: session.save("x"),
    ):
        with pytest.raises(InputError, match="the model was closed"):
            use()
    session.close()
