"""A server from its socket to its end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

import uvicorn

from edgespec.errors import InputError
from edgespec.server.app import application
from edgespec.server.endpoint import Served

_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_GRACE_SECONDS = 10  # for clients that do not read what they asked for


def listen(host: str, port: int) -> socket.socket:
    """A socket that clients can reach; port 0: any that is free.

    Raises:
        InputError: if it cannot be had.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((address[0], port), family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"port {port} of {host} cannot be had ({reason}): give others with --host and --port"
        ) from error


def is_local(sock: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    address: str = sock.getsockname()[0]
    return address.startswith("127.") or address == "::1"


class Server(uvicorn.Server):
    """Serves until SIGTERM or SIGINT, or until `should_exit` is set.

    Then no client is let in any more, and texts end after their present round.

    Args:
        served: the model and its queue.
        api_key: which clients must have; None: nobody needs one.
        sock: from `listen`.
        ready: called when clients are let in.
        origins: see `application`.
    """

    def __init__(
        self, served: Served, api_key: str | None, sock: socket.socket,
        ready: Callable[[], None] = lambda: None, origins: Sequence[str] = (),
    ) -> None:  # fmt: skip
        hosts = (*_LOCAL, sock.getsockname()[0]) if is_local(sock) else None
        self._desk = served.desk
        self._sock = sock
        self._ready = ready
        super().__init__(
            uvicorn.Config(
                application(served, api_key, hosts, origins), lifespan="off", ws="none",
                log_config=None, access_log=False, proxy_headers=False, server_header=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )  # fmt: skip

    def serve_here(self) -> None:
        """Until the end, on this thread."""
        self.run([self._sock])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, which waits for answers under way: these end soon."""
        self._desk.close()
        await super().shutdown(sockets)
