"""What is done for requests besides their texts, on threads of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest
from servers import until

from edgespec.serve.refusals import RequestError
from edgespec.serve.threads import SideThreads
from edgespec.system.waiting import require_waiting


@pytest.fixture
def side():
    threads = SideThreads()
    yield threads
    threads.close()


def test_work_gives_what_it_makes_or_raises(side):
    assert asyncio.run(side.do(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        asyncio.run(side.do(lambda: 1 / 0))
    until(lambda: not side.busy)


def test_two_are_done_at_once_and_large_ones_by_turns(side):
    async def most(number):
        lock = threading.Lock()
        gate = threading.Barrier(2)
        doing, found = 0, []

        def work():
            nonlocal doing
            with lock:
                doing += 1
                found.append(doing)
            try:
                gate.wait(0.2)
            except threading.BrokenBarrierError:
                gate.reset()
            with lock:
                doing -= 1

        await asyncio.gather(*(side.do(work) for _ in range(number)))
        return max(found)

    async def large(number):
        with side.large():
            return await most(number)

    assert asyncio.run(most(4)) == 2
    assert asyncio.run(large(2)) == 1


def test_work_hears_that_its_client_has_left_and_is_waited_for(side):
    begun, release, heard = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        release.wait(30)
        try:
            require_waiting()
        except BaseException as error:
            heard.append(error)

    async def ask():
        task = asyncio.create_task(side.do(work))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    assert len(heard) == 1


def test_a_shutdown_refuses_what_waits_and_what_comes(side):
    begun, release = threading.Event(), threading.Event()

    def work():
        begun.set()
        release.wait(30)

    async def ask():
        task = asyncio.create_task(side.do(work))
        await asyncio.to_thread(begun.wait, 30)
        side.close()
        for refused in (task, side.do(int)):
            with pytest.raises(RequestError, match="shutting down"):
                await refused
        assert side.busy

    try:
        asyncio.run(ask())
    finally:
        release.set()
    until(lambda: not side.busy)
