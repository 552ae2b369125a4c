"""The queue of requests, first come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from edgespec.server.refusals import RequestError, shutting_down


class Queue:
    """A queue that lets some texts run at once, while others wait in order. For one event loop.

    Args:
        parallel: number of texts at once.
        limit: maximum number of waiting requests.
    """

    def __init__(self, parallel: int, limit: int) -> None:
        self._parallel = parallel
        self._limit = limit
        # The first `parallel` ones are running. A future is done when its request may start.
        self._places: list[asyncio.Future[None]] = []
        self._closed = False

    @property
    def running(self) -> int:
        """The number of requests whose turn it is."""
        return min(len(self._places), self._parallel)

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._places) - self.running

    @contextmanager
    def place(self) -> Iterator[asyncio.Future[None]]:
        """Takes a place in the queue for the time of the block.

        Yields:
            A future to await, which is done when it is this request's turn.

        Raises:
            RequestError: if too many wait, or the queue is closed, also while awaiting the turn.
        """
        if self._closed:
            raise shutting_down()
        if len(self._places) >= self._parallel + self._limit:
            raise RequestError(
                429, f"{self.waiting} requests are waiting already: try again later", "queue_full"
            )
        turn = asyncio.get_running_loop().create_future()
        self._places.append(turn)
        self._advance()
        try:
            yield turn
        finally:
            self._places.remove(turn)
            self._advance()

    def close(self) -> None:
        """Closes the queue: no request gets a place or a turn any more."""
        self._closed = True
        for turn in self._places[self._parallel :]:
            if not turn.done():
                turn.set_exception(shutting_down())

    def _advance(self) -> None:
        for turn in self._places[: self._parallel]:
            if not turn.done():
                turn.set_result(None)
