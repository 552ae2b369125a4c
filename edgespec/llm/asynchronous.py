"""Texts for asyncio: what waits for a round does so on threads, and the event loop goes on.

Imported where asyncio is in use already, since loading it takes 20 ms.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edgespec.llm.result import Result
from edgespec.llm.stream import Stream
from edgespec.system.async_work import begin_work
from edgespec.system.waiting import NOBODY_WAITS


async def read_to_end(begin: Callable[[], Stream]) -> Result:
    """Prepares a text and reads it to its end; a task that is cancelled ends both."""
    gone = threading.Event()

    def prepared() -> Stream:
        NOBODY_WAITS.set(gone.is_set)  # in the context of this work alone
        return begin()

    try:
        stream = await begin_work(prepared)
    finally:
        gone.set()
    async for _ in stream:
        pass
    return stream.result
