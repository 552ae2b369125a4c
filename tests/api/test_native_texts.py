"""Texts of native graphs at once: each is what it is alone, and none holds the others up."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from embeddings import PROMPTS, embedding_of, ids_of, make_embedding
from native_llms import loaded, with_library
from pairs import LONG_PROMPT, NEW_TOKENS, SHORT_PROMPT
from sessions import OPTIONS, turns

from edgespec import bundle as bundles
from edgespec.api.llm import LLM
from edgespec.api.loading import LoadOptions
from edgespec.errors import ContextLengthError, InputError
from edgespec.export import ExportOptions, export_bundle

pytestmark = with_library

LONG = {"max_new_tokens": 200}


@pytest.mark.parametrize("sessions", [1, 8])
def test_texts_of_eight_threads_are_what_each_is_alone(natives, pairs, sessions):
    with loaded(pairs, "llama", sessions=sessions) as llm:
        prompts = list(turns(llm, 8, seed=2))
        alone = [natives("llama", "none").generate(each, **OPTIONS).tokens for each in prompts]
        found = {}

        def work(number):
            for step in range(3):
                place = (number + 3 * step) % len(prompts)
                result = llm.generate(prompts[place], **OPTIONS)
                found[number, step] = result.tokens == alone[place]

        together(*[lambda number=number: work(number) for number in range(8)])
        assert found == {(number, step): True for number in range(8) for step in range(3)}
        llm.forget()
        assert not any(model.pool.used for model in llm.models.values())


def together(*works):
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


def test_a_list_of_prompts_gives_their_texts_in_order(natives):
    llm = natives("llama")
    prompts = [SHORT_PROMPT, LONG_PROMPT, "x", SHORT_PROMPT]
    results = llm.generate(prompts, **OPTIONS)
    assert [each.tokens for each in results] == [
        natives("llama", "none").generate(prompt, **OPTIONS).tokens for prompt in prompts
    ]
    with pytest.raises(InputError, match=r"prompts\[1\]: the prompt is empty"):
        llm.generate(["x", ""])


def test_several_answers_to_one_prompt_share_it(natives):
    llm = natives("llama")
    llm.forget()
    length = len(llm.tokenizer.encode(LONG_PROMPT))
    streams = [llm.stream(LONG_PROMPT, temperature=1.0, seed=seed, **LONG) for seed in range(3)]
    open_ones = [iter(stream) for stream in streams]
    while open_ones:  # one thread reads them in turn
        open_ones = [pieces for pieces in open_ones if next(pieces, None) is not None]
    assert [stream.result.reused for stream in streams] == [0, length - 1, length - 1]
    for seed, stream in enumerate(streams):
        alone = natives("llama", "none").generate(LONG_PROMPT, temperature=1.0, seed=seed, **LONG)
        assert stream.result.tokens == alone.tokens


def test_a_text_that_is_cancelled_or_left_leaves_others(natives):
    llm = natives("llama")
    expected = natives("llama", "none").generate(SHORT_PROMPT, **LONG).tokens
    cancelled, left, other = (llm.stream(SHORT_PROMPT, **LONG) for _ in range(3))
    for stream in (cancelled, left, other):
        next(iter(stream))
    cancelled.cancel()
    left.close()
    assert cancelled.finish().finish_reason == "cancelled"
    assert cancelled.result.tokens == expected[: len(cancelled.result.tokens)]
    with pytest.raises(InputError, match="no result yet"):
        left.result  # noqa: B018
    assert other.finish().tokens == expected
    assert not llm.engine.running
    early = llm.stream(SHORT_PROMPT)
    early.cancel()
    assert (early.finish().finish_reason, early.result.tokens) == ("cancelled", [])


def test_a_text_that_nobody_has_any_more_ends(natives):
    llm = natives("llama")
    for _ in llm.stream(SHORT_PROMPT, **LONG):
        break
    assert not llm.engine.running


# asyncio


def test_texts_for_async_for(natives):
    llm = natives("llama")

    async def read(prompt):
        stream = llm.stream(prompt, **OPTIONS)
        pieces = [piece async for piece in stream]
        assert "".join(pieces) == stream.result.text
        return stream.result.tokens

    async def both():
        return await asyncio.gather(read(LONG_PROMPT), read(SHORT_PROMPT))

    plain = natives("llama", "none")
    expected = [plain.generate(each, **OPTIONS).tokens for each in (LONG_PROMPT, SHORT_PROMPT)]
    assert asyncio.run(both()) == expected


@pytest.mark.parametrize("leaves", ["cancelled", "break"])
def test_a_text_that_a_task_leaves_is_cancelled(natives, leaves):
    stream = natives("llama", "none").stream(LONG_PROMPT, **LONG)

    async def read():
        async for _ in stream:
            if leaves == "break":
                break

    async def leave():
        task = asyncio.create_task(read())
        while not stream.rounds and not task.done():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)  # a loop that is left ends behind its task

    asyncio.run(leave())
    assert stream.result.finish_reason == "cancelled"
    assert len(stream.rounds) < 199


# Where a text ends


@pytest.mark.parametrize("draft", ["none", "lookup", "auto"])
def test_the_context_ends_a_text(natives, pairs, draft):
    whole = natives("llama", "none").generate(LONG_PROMPT, max_new_tokens=30).tokens
    ids = natives("llama").tokenizer.encode(LONG_PROMPT)
    for left in (1, 2, 9):
        with loaded(pairs, "llama", draft, context=len(ids) + left) as llm:
            result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
            assert (result.tokens, result.finish_reason) == (whole[:left], "context")
            with pytest.raises(ContextLengthError, match="context length"):
                llm.generate([5] * (len(ids) + left))


@pytest.mark.parametrize("how", [{}, {"temperature": 2.5, "seed": 4}], ids=["greedy", "sampled"])
def test_stop_strings_end_it_wherever_tokens_begin(natives, how):
    plain, llm = natives("llama", "none"), natives("llama")
    whole = plain.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **how)
    for start in range(3, len(whole.text) - 4, 41):
        stop = whole.text[start : start + 4]
        options = {"max_new_tokens": NEW_TOKENS, "stop": ("never there", stop), **how}
        result = llm.generate(LONG_PROMPT, **options)
        assert (result.text, result.finish_reason) == (whole.text.partition(stop)[0], "stop")
        assert result.tokens == whole.tokens[: result.new_tokens]
        assert result.accepted + result.rounds <= result.new_tokens


def test_one_token_has_no_speed(natives):
    result = natives("llama").generate(LONG_PROMPT, max_new_tokens=1)
    assert (result.finish_reason, result.new_tokens, result.rounds) == ("length", 1, 0)
    assert (result.tpot_ms, result.tokens_per_second, result.mean_accepted_length) == (0, 0, 0)


# The rest of the public methods


@pytest.mark.parametrize(
    ("architecture", "pooling"), [("qwen3", "lasttoken"), ("llama", "mean_tokens")]
)
def test_embeddings_are_those_of_transformers(tmp_path, architecture, pooling):
    checkpoint, path = tmp_path / "checkpoint", tmp_path / "bundle"
    model = make_embedding(checkpoint, architecture, pooling=pooling, prompts=PROMPTS)
    export_bundle(checkpoint, path, options=ExportOptions("fp32"))
    texts = [SHORT_PROMPT, LONG_PROMPT * 2, "x"]
    with LLM(bundles.load(path), LoadOptions(threads=1)) as llm:
        found = llm.embed(texts)
        assert np.array_equal(llm.embed(texts[::-1]), found[::-1])
        assert not llm.engine.target.pool.used
        with pytest.raises(InputError, match="makes embeddings, and no text"):
            llm.generate("x")
    for text, vector in zip(texts, found, strict=True):
        ids = ids_of(checkpoint, text)
        # Their activations are rounded to 8 bits in native graphs, as those of texts.
        assert vector @ embedding_of(model, ids, pooling) > 0.999
    with pytest.raises(InputError, match="the model was closed"):
        llm.embed("x")


def test_a_model_of_texts_makes_no_embeddings(natives):
    with pytest.raises(InputError, match="no embeddings"):
        natives("llama").embed("x")


def test_warming_up_leaves_no_slot(natives):
    llm = natives("llama")
    llm.forget()
    llm.warm_up()
    assert not any(model.pool.used for model in llm.models.values())
