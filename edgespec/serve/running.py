"""Starting, running and stopping the server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgespec.errors import InputError
from edgespec.serve.access import Access, Certificate
from edgespec.serve.app import application
from edgespec.serve.queue import RequestQueue

_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_GRACE_SECONDS = 1  # time at shutdown for clients that do not read their responses
_END_SECONDS = 1.4  # from a signal to the end of the process, even if native code does not end
_HEAD_BYTES = 1 << 16  # of a request, without its body
_ACCEPTED, _UNACCEPTED = 32, 2048  # connections: most that are accepted at a time, most that wait
_LOG_SECONDS = 60.0  # between two lines about connections
_LOGS = ("asyncio", "uvicorn.error")

IDLE_SECONDS = 10.0
"""Longest time in which nothing comes of a request that is not whole."""

REQUEST_SECONDS = 60.0
"""Longest time until a request is whole."""

MOST_CONNECTIONS = 512
"""Largest number of open connections, if the process may have twice as many files."""

_log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """Opens a listening socket; port 0 means any free port.

    Raises:
        InputError: if the socket cannot be opened.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((address[0], port), family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot listen on port {port} of {host} ({reason}): choose others with --host and "
            "--port"
        ) from error


def is_local(sock: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    address: str = sock.getsockname()[0]
    return address.startswith("127.") or address == "::1"


class _Connection(H11Protocol):
    """A connection whose requests come in time, and that makes room for others if they do not."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.heard = self.since = time.monotonic()
        if len(self.connections) > (most := _most_connections()):
            _log.warning("%d connections are open: the idlest are closed", most)
            others = (each for each in self.connections if isinstance(each, _Connection))
            stalled = sorted(  # with this one; several at once, since all are looked at
                (each for each in others if each.is_stalled), key=lambda each: each.heard
            )
            for each in stalled[: max(1, most // 8)]:
                each.transport.abort()
                self.connections.discard(each)

    def data_received(self, data: bytes) -> None:
        self.heard = time.monotonic()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.heard = self.since = time.monotonic()
        super().on_response_complete()

    @property
    def is_asking(self) -> bool:
        """Whether no request is whole that was not answered."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    @property
    def is_stalled(self) -> bool:
        """Whether it waits for its client."""
        return self.is_asking or self.flow.write_paused

    def end_late(self, now: float) -> None:
        """Closes it if its request does not come in time."""
        late = now - self.heard > IDLE_SECONDS or now - self.since > REQUEST_SECONDS
        if self.is_asking and late:
            self.transport.abort()


def _most_connections() -> int:
    try:
        import resource
    except ModuleNotFoundError:  # on Windows, where sockets are no files
        return MOST_CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if files < 0 else min(MOST_CONNECTIONS, files // 2)


def _seldom() -> Callable[[logging.LogRecord], bool]:
    """Returns what passes a line a minute of those that clients can cause, and all others."""
    last = -_LOG_SECONDS

    def passes(record: logging.LogRecord) -> bool:
        nonlocal last
        text = record.getMessage()
        now = time.monotonic()
        if "graceful shutdown exceeded" in text:  # as it is meant to be
            return False
        if record.levelno != logging.WARNING and "accept" not in text:
            return True
        if passing := now - last >= _LOG_SECONDS:
            last = now
        return passing

    return passes


class Server(uvicorn.Server):
    """A server that runs until SIGTERM or SIGINT, or until `should_exit` is set.

    Then it accepts no more requests, and texts end after their current round. A signal also ends
    the process within 2 s, whatever its threads do; `settle` lets it live if they do nothing.

    Args:
        queue: who waits and who is answered, with the models.
        sock: socket from `listen`.
        access: who may use it; None: everybody who can reach it.
        ready: function to call when the server accepts requests.
        certificate: what connections are encrypted by; None: they are not.
    """

    def __init__(
        self,
        queue: RequestQueue,
        sock: socket.socket,
        access: Access | None = None,
        ready: Callable[[], None] = lambda: None,
        certificate: Certificate | None = None,
    ) -> None:
        access = access or Access()
        named = (*_LOCAL, sock.getsockname()[0], *(host.lower() for host in access.hosts))
        app = application(queue, named if is_local(sock) else None, access)
        self._queue = queue
        self._sock = sock
        self._ready = ready
        self._end: threading.Timer | None = None
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
                http=_Connection,
                loop="asyncio",
                h11_max_incomplete_event_size=_HEAD_BYTES,
                backlog=_ACCEPTED,
                ssl_certfile=None if certificate is None else certificate.file,
                ssl_keyfile=None if certificate is None else certificate.key,
            )
        )

    def serve_here(self) -> None:
        """Runs the server on this thread until it stops."""
        loggers = [*map(logging.getLogger, _LOGS), _log]
        seldom = _seldom()
        for logger in loggers:
            logger.addFilter(seldom)
        try:
            self.run([self._sock])
        finally:
            for logger in loggers:
                logger.removeFilter(seldom)

    def settle(self) -> None:
        """Lets the process go on after a signal, unless threads still work, which ends it soon."""
        if self._end is not None and not self._queue.busy:
            self._end.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See uvicorn; what does not end in time is left."""
        if self._end is None:
            self._end = threading.Timer(_END_SECONDS, _leave)
            self._end.daemon = True
            self._end.start()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn; also closes connections whose requests do not come in time."""
        if counter % 5 == 0:
            now = time.monotonic()
            for each in tuple[Any, ...](self.server_state.connections):
                each.end_late(now)
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn; also calls `ready`."""
        await super().startup(sockets)
        # asyncio accepts as many at a time as may wait, and streams would wait for all of them.
        self._sock.listen(_UNACCEPTED)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn, which waits for open responses; closing the queue ends them soon."""
        self._queue.close()
        await super().shutdown(sockets)


def _leave() -> None:
    """Ends the process."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(0)
