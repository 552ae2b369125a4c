"""Texts awaited by tasks: the event loop goes on, and a task that goes takes its text along."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing

import pytest
from native_llms import loaded, with_library
from pairs import LONG_PROMPT, SHORT_PROMPT
from servers import PLACE, make_bundle

from edgespec import LLM
from edgespec.errors import ContextLengthError, InputError
from edgespec.llm.llm import inside
from edgespec.system.waiting import NOBODY_WAITS

pytestmark = with_library

LONG = {"max_new_tokens": 400}


@pytest.fixture(scope="module")
def chatting(tmp_path_factory):
    with LLM(make_bundle(tmp_path_factory.mktemp("chat")), **PLACE) as llm:
        yield llm


@pytest.fixture
def passes(pairs, monkeypatch):
    """A model of the test's own, and how many passes it has made."""
    with loaded(pairs, "llama", "none") as llm:
        target = inside(llm).engine.target
        made = []
        graph = target.graph
        monkeypatch.setattr(target, "graph", lambda feeds: (made.append(1), graph(feeds))[1])
        yield llm, made


def left(llm):
    """What no text has given back."""
    running = inside(llm).engine.running
    llm.forget()
    return running, sum(model.pool.used for model in inside(llm).models.values())


async def behind(passes, count):
    while len(passes) < count:
        await asyncio.sleep(0.001)


def test_answers_and_texts_are_awaited(chatting, natives):
    async def both():
        llm = natives("llama")
        prompts = [SHORT_PROMPT, LONG_PROMPT]
        texts = [llm.agenerate(prompt, max_tokens=20) for prompt in prompts]
        return await asyncio.gather(chatting.achat("hello", max_tokens=20), *texts)

    answer, *texts = asyncio.run(both())
    assert answer.tokens == chatting.chat("hello", max_new_tokens=20).tokens
    plain = natives("llama", "none")
    for prompt, text in zip([SHORT_PROMPT, LONG_PROMPT], texts, strict=True):
        assert text.tokens == plain.generate(prompt, max_new_tokens=20).tokens


def test_errors_are_raised_where_a_text_is_awaited(natives, chatting):
    with pytest.raises(ContextLengthError, match="longer than the model's context"):
        asyncio.run(natives("llama").agenerate([1] * 5000))
    with pytest.raises(InputError, match="max_new_tokens is 0"):
        asyncio.run(chatting.achat("hello", max_new_tokens=0))


@pytest.mark.parametrize("how", ["cancel", "timeout", "break", "aclosing", "aclose"])
def test_a_text_ends_with_the_pass_under_way_and_frees_its_slots(passes, how):
    llm, made = passes

    async def leave():
        if how in ("cancel", "timeout"):
            task = asyncio.create_task(llm.agenerate(LONG_PROMPT, **LONG))
            await behind(made, 5)
            if how == "cancel":
                task.cancel()
            with pytest.raises(TimeoutError if how == "timeout" else asyncio.CancelledError):
                await asyncio.wait_for(task, 0.001 if how == "timeout" else None)
            return len(made)
        stream = llm.stream(LONG_PROMPT, **LONG)
        if how == "aclosing":
            async with aclosing(stream):
                async for _ in stream:
                    break
        elif how == "aclose":  # of a text that another task reads
            reader = asyncio.create_task(pieces(stream))
            await behind(made, 5)
            await stream.aclose()
            found = len(made)
            assert len(await reader) < 400
            return found
        else:
            async for _ in stream:
                break
            await asyncio.sleep(0)  # a loop that is left ends behind its task
            await stream.aclose()
        return len(made)

    async def pieces(stream):
        return [piece async for piece in stream]

    found = asyncio.run(leave())
    assert found == len(made) < 100
    assert left(llm) == ([], 0)


def test_a_task_that_goes_while_its_text_is_prepared_ends_that(chatting, monkeypatch):
    """As of a grammar that takes long."""
    ready = threading.Event()
    gone = threading.Event()

    def prepare(self, messages, **options):
        ready.set()
        while not NOBODY_WAITS.get()():
            pass
        gone.set()
        raise InputError("nobody waits")

    monkeypatch.setattr(LLM, "chat_stream", prepare)

    async def leave():
        task = asyncio.create_task(chatting.achat("hello"))
        await asyncio.to_thread(ready.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(gone.wait, 60)

    asyncio.run(leave())


def test_the_event_loop_goes_on_and_its_threads_are_free(natives):
    """More texts than the event loop has threads, while others want one of these."""
    llm = natives("llama", "none")
    turns = []

    async def count(texts):
        while not texts.done():
            await asyncio.to_thread(turns.append, len(turns))

    async def work():
        prompts = [[number + 1, 2, 3] for number in range(40)]
        texts = asyncio.gather(*(llm.agenerate(prompt, max_tokens=12) for prompt in prompts))
        await count(texts)
        return await texts

    assert all(text.new_tokens == 12 for text in asyncio.run(work()))
    assert len(turns) > 12
