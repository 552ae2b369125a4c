"""Whoever reads a text may stop: nobody waits for its caches then."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import nullcontext

import pytest
from pairs import LONG_PROMPT, SHORT_PROMPT
from sessions import OPTIONS, fresh, load


def test_a_text_that_nobody_reads_any_more_is_over(pairs):
    llm = load(pairs)
    with llm.session() as session:
        for _ in session.stream(LONG_PROMPT, **OPTIONS):
            break
        assert session.generate(SHORT_PROMPT, **OPTIONS).tokens == fresh(pairs, SHORT_PROMPT).tokens
    for _ in llm.stream(LONG_PROMPT, **OPTIONS):
        break
    assert not any(slot.busy for slot in llm._texts.shared.slots._slots)


@pytest.mark.parametrize("failing", [False, True])
def test_an_event_loop_that_ends_ends_the_texts_of_its_tasks(pairs, failing):
    llm, streams = load(pairs, sessions=3), []

    async def read():
        streams.append(llm.stream(LONG_PROMPT, max_new_tokens=300))
        async for _ in streams[-1]:
            pass

    async def work():
        tasks = [asyncio.create_task(read()) for _ in range(3)]
        while not all(stream.rounds for stream in streams) or len(streams) < 3:
            await asyncio.sleep(0.01)
        if failing:
            raise RuntimeError(f"with {len(tasks)} texts under way")

    with pytest.raises(RuntimeError, match="3 texts") if failing else nullcontext():
        asyncio.run(work())
    assert [stream.result.finish_reason for stream in streams] == ["cancelled"] * 3
    assert not any(slot.busy for slot in llm._texts.shared.slots._slots)


def test_a_task_that_is_cancelled_twice_leaves_the_session_free(pairs, monkeypatch):
    llm = load(pairs, "none")
    executable, begun = llm.target.executables[0], threading.Event()
    run = executable.run

    def run_slowly(*arguments):
        begun.set()
        time.sleep(0.05)
        return run(*arguments)

    monkeypatch.setattr(executable, "run", run_slowly)
    with llm.session() as session:
        stream = session.stream(LONG_PROMPT, **OPTIONS)

        async def read():
            async for _ in stream:
                pass

        async def work():
            task = asyncio.create_task(read())
            await asyncio.to_thread(begun.wait)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(work())
        assert stream.result.finish_reason == "cancelled"
        assert session.generate(SHORT_PROMPT, **OPTIONS).tokens == fresh(pairs, SHORT_PROMPT).tokens
