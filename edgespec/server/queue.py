"""Whose text is made next: who asked first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from edgespec.server.refusals import RequestError, shutting_down


class Queue:
    """So many texts at once; others wait in the order they came. For one event loop.

    Args:
        parallel: texts at once.
        limit: how many may wait.
    """

    def __init__(self, parallel: int, limit: int) -> None:
        self._parallel = parallel
        self._limit = limit
        self._places: list[asyncio.Future[None]] = []  # whose turn it is stand first
        self._closed = False

    @property
    def running(self) -> int:
        """Whose turn it is."""
        return min(len(self._places), self._parallel)

    @property
    def waiting(self) -> int:
        """Who waits."""
        return len(self._places) - self.running

    @contextmanager
    def place(self) -> Iterator[asyncio.Future[None]]:
        """Take a place, and leave it at the end; what is given is to be awaited: one's turn.

        Raises:
            RequestError: if too many wait, or the queue is closed, also while the turn is awaited.
        """
        if self._closed:
            raise shutting_down()
        if len(self._places) >= self._parallel + self._limit:
            raise RequestError(
                429, f"{self.waiting} texts are waiting already: ask again later", "queue_full"
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
        """Nobody gets a place or a turn any more."""
        self._closed = True
        for turn in self._places[self._parallel :]:
            if not turn.done():
                turn.set_exception(shutting_down())

    def _advance(self) -> None:
        for turn in self._places[: self._parallel]:
            if not turn.done():
                turn.set_result(None)
