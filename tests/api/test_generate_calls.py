"""What goes into a call and comes out of it: prompts, options, pieces of text, and facts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from drafts import SIZES, engines
from pairs import ENGINES, LONG_PROMPT, NEW_TOKENS, SHORT_PROMPT

from edgespec import LLM
from edgespec.errors import InputError

# The stream


@pytest.mark.parametrize("draft", SIZES)
def test_pieces_are_the_text(pairs, draft):
    llm = pairs.llm("llama", ENGINES[0], draft)
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
def test_cancelling_ends_the_text_after_the_round(pairs, draft):
    llm = pairs.llm("llama", ENGINES[0], draft)
    stream = llm.stream(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
    pieces = [next(iter(stream)) for _ in range(3)]
    stream.cancel()
    pieces += stream
    result = stream.result
    assert result.finish_reason == "cancelled"
    assert result.tokens == pairs.greedy("llama")[: result.new_tokens]
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


def test_token_ids_are_a_prompt(pairs):
    llm = pairs.llm("llama", ENGINES[0], "model")
    ids = llm.tokenizer.encode(LONG_PROMPT)
    for prompt in (ids, tuple(ids), np.array(ids).tolist()):
        result = llm.generate(prompt, max_new_tokens=5)
        assert result.tokens == pairs.greedy("llama")[:5]
        assert result.prompt_tokens == len(ids)
    for wrong in (-1, 331):
        with pytest.raises(InputError, match=f"token id {wrong} is not in the vocabulary of 331"):
            llm.generate([1, wrong])


def test_prompts_of_nothing_are_refused(pairs):
    for prompt in ("", []):
        with pytest.raises(InputError, match="the prompt is empty"):
            pairs.llm("llama", ENGINES[0], "model").generate(prompt)


def test_bytes_are_not_taken_for_ids(pairs):
    for prompt in (b"def", bytearray(b"def"), memoryview(b"def")):
        with pytest.raises(InputError, match="b'def', which is not text: decode it"):
            pairs.llm("llama", ENGINES[0], "model").generate(prompt)


@pytest.mark.parametrize(
    "prompt", [None, 5, [1.0], [[1, 2]], np.ones((1, 3), np.int64), ["def"], [{"role": "user"}]]
)
def test_prompts_that_are_neither_text_nor_ids_are_refused(pairs, prompt):
    """As the batch of one that transformers' tokenizers give, or what chat() takes."""
    llm = pairs.llm("llama", ENGINES[0], "model")
    with pytest.raises(InputError, match="or token ids in one flat list"):
        llm.stream(prompt)
    if str(prompt) not in ("[[1, 2]]", "['def']"):  # several prompts
        with pytest.raises(InputError, match="or token ids in one flat list"):
            llm.generate(prompt)


def test_unknown_keywords_are_errors(pairs):
    llm = pairs.llm("llama", ENGINES[0], "model")
    known = r"did you mean max_new_tokens\?\): use one of .*max_new_tokens,"
    with pytest.raises(TypeError, match=known):
        llm.generate("x", max_tokens=3)
    with pytest.raises(TypeError, match="unknown option 'max_tokens'"):
        llm.stream("x", max_tokens=3)


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
        InputError, match="draft is 'gpt': use one of auto, none, model, parallel, head, layer-skip"
    ):
        LLM(pairs.pair("llama").path, draft="gpt")
    with pytest.raises(InputError, match="has no skip sets: export it with --layer-skip auto"):
        LLM(pairs.pair("llama").path, draft="layer-skip")
    with pytest.raises(InputError, match="draft_memory is given, but draft 'lookup'"):
        LLM(pairs.pair("llama").path, draft="lookup", draft_memory="memory")
    with pytest.raises(InputError, match="draft_source is '': a model loaded with draft 'lookup'"):
        pairs.llm("llama", ENGINES[0], "lookup").generate("x", draft_source="")
