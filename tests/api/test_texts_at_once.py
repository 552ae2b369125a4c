"""Many texts of one model at once: they take turns, and none changes another or holds it up."""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar

import pytest
from pairs import LONG_PROMPT, SHORT_PROMPT
from sessions import OPTIONS, fresh, load, turns
from watching import on_every_call


@pytest.mark.parametrize("reuse", [False, True])
def test_texts_of_many_threads_do_not_cross(pairs, reuse):
    llm = load(pairs, prefix_reuse=reuse, sessions=8)
    prompts = list(turns(llm, 8, seed=2))
    expected = [fresh(pairs, prompt).tokens for prompt in prompts]
    found = {}

    def work(number):
        for step in range(3):
            place = (number + 3 * step) % len(prompts)
            found[number, step] = llm.generate(prompts[place], **OPTIONS).tokens == expected[place]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {(number, step): True for number in range(8) for step in range(3)}


def test_texts_take_turns_round_by_round(pairs):
    """A short text that comes late ends long before a long one that has begun."""
    llm = load(pairs, "none")
    long = llm.stream(LONG_PROMPT, max_new_tokens=250)
    pieces = iter(long)
    next(pieces)
    short = llm.stream(SHORT_PROMPT, max_new_tokens=8)
    done = []

    def work():
        short.finish()
        done.append(len(long.rounds))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in pieces:
        pass
    thread.join()
    assert done[0] < 150


def test_what_was_learned_is_saved_between_rounds(pairs, tmp_path):
    llm, path = load(pairs, "recycling"), tmp_path / "memory"
    thread = threading.Thread(target=llm.save_draft_memory, args=(path,))
    with llm.lock:  # as a text has while it learns
        thread.start()
        thread.join(0.2)
        assert not path.exists()
    thread.join()
    assert path.exists()


def test_one_thread_may_read_two_texts_in_turn(pairs):
    llm = load(pairs)
    streams = [llm.stream(prompt, **OPTIONS) for prompt in (LONG_PROMPT, SHORT_PROMPT)]
    open_ones = [iter(stream) for stream in streams]
    while open_ones:
        open_ones = [pieces for pieces in open_ones if next(pieces, None) is not None]
    for stream, prompt in zip(streams, (LONG_PROMPT, SHORT_PROMPT), strict=True):
        assert stream.result.tokens == fresh(pairs, prompt).tokens


def test_an_abandoned_text_holds_nobody_up(pairs):
    llm = load(pairs)
    next(iter(llm.stream(LONG_PROMPT, max_new_tokens=200)))
    assert llm.generate(SHORT_PROMPT, **OPTIONS).tokens == fresh(pairs, SHORT_PROMPT).tokens


def test_text_for_async_for(pairs):
    llm = load(pairs)

    async def read(prompt):
        stream = llm.stream(prompt, **OPTIONS)
        pieces = [piece async for piece in stream]
        assert "".join(pieces) == stream.result.text
        return stream.result.tokens

    async def both():
        return await asyncio.gather(read(LONG_PROMPT), read(SHORT_PROMPT))

    assert asyncio.run(both()) == [
        fresh(pairs, LONG_PROMPT).tokens,
        fresh(pairs, SHORT_PROMPT).tokens,
    ]


def test_text_for_async_for_is_made_in_its_readers_context(pairs, monkeypatch):
    """As `asyncio.to_thread` does: what is logged meanwhile can name the request."""
    llm, request, seen = load(pairs), ContextVar("request"), set()
    on_every_call(monkeypatch, llm, "target", lambda _: seen.add(request.get(None)))

    async def read():
        request.set("mine")
        async for _ in llm.stream(SHORT_PROMPT, **OPTIONS):
            pass

    asyncio.run(read())
    assert seen == {"mine"}


def test_a_cancelled_task_ends_its_text_within_a_round(pairs, monkeypatch):
    llm = load(pairs, "none")
    stream = llm.stream(LONG_PROMPT, max_new_tokens=200)

    async def read():
        async for _ in stream:
            pass

    async def cut():
        task = asyncio.create_task(read())
        while len(stream.rounds) < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        before = len(stream.rounds)
        with pytest.raises(asyncio.CancelledError):
            await task
        return before

    before = asyncio.run(cut())
    assert len(stream.rounds) <= before + 2


@pytest.mark.parametrize("leaves", ["cancelled", "break"])
def test_a_session_is_free_when_its_text_is_left(pairs, leaves):
    llm = load(pairs)

    async def read(stream):
        async for _ in stream:
            if leaves == "break":
                break

    async def leave(stream):
        task = asyncio.create_task(read(stream))
        while not stream.rounds and not task.done():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)  # a loop that is left ends behind its task

    with llm.session() as session:
        stream = session.stream(LONG_PROMPT, max_new_tokens=200)
        asyncio.run(leave(stream))
        assert stream.result.finish_reason == "cancelled"
        assert session.generate(SHORT_PROMPT, **OPTIONS).tokens == fresh(pairs, SHORT_PROMPT).tokens


def test_a_long_prompt_is_read_in_turns_and_can_be_cancelled(pairs):
    """Others need not wait for all of it; what was read stays."""
    llm = load(pairs, "none")
    prompt = [number % 300 + 1 for number in range(400)]
    with llm.session() as session:
        expected = llm.generate(prompt, **OPTIONS)
        stream = session.stream(prompt, **OPTIONS)
        steps, inner = [], llm.target.executables[0].run

        def count(*arguments):
            steps.append(len(session._slot.tokens))
            if len(steps) == 2:
                stream.cancel()
            return inner(*arguments)

        llm.target.executables[0].run = count
        result = stream.finish()
        assert (result.finish_reason, result.tokens) == ("cancelled", [])
        assert steps == [0, 64]
        again = session.generate(prompt, **OPTIONS)
        assert (again.reused, again.tokens) == (128, expected.tokens)


def test_a_short_text_does_not_wait_for_a_long_prompt(pairs):
    llm = load(pairs, "none", sessions=2)
    long = llm.stream([number % 300 + 1 for number in range(450)], max_new_tokens=2)
    done = []
    thread = threading.Thread(target=lambda: done.append(long.finish()))
    with llm.lock:
        thread.start()
        short = threading.Thread(
            target=lambda: done.append(llm.generate(SHORT_PROMPT, max_new_tokens=1))
        )
        while not llm.lock._first:
            time.sleep(0.001)
        short.start()
        while len(llm.lock._first) < 2:
            time.sleep(0.001)
    thread.join(60)
    short.join(60)
    assert [result.new_tokens for result in done] == [1, 2]
