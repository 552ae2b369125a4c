"""Starting, running and stopping the server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

import uvicorn

from edgespec.errors import InputError
from edgespec.server.app import application
from edgespec.server.endpoint import Served

# The last one is what containers call the machine that they run on.
_LOCAL = ("localhost", "127.0.0.1", "[::1]", "host.docker.internal")
_GRACE_SECONDS = 10  # time at shutdown for clients that do not read their responses


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


class Server(uvicorn.Server):
    """A server that runs until SIGTERM or SIGINT, or until `should_exit` is set.

    Then it accepts no more requests, and texts end after their current round.

    Args:
        served: model, its name and limits.
        api_key: API key that clients must send; None if they need none.
        sock: socket from `listen`.
        ready: function to call when the server accepts requests.
        origins: see `application`.
        hosts: further names by which a server that only this machine can reach may be asked.
    """

    def __init__(
        self, served: Served, api_key: str | None, sock: socket.socket,
        ready: Callable[[], None] = lambda: None, origins: Sequence[str] = (),
        hosts: Sequence[str] = (),
    ) -> None:  # fmt: skip
        named = (*_LOCAL, sock.getsockname()[0], *(host.lower() for host in hosts))
        app = application(served, api_key, named if is_local(sock) else None, origins)
        self._service = served.service
        self._sock = sock
        self._ready = ready
        super().__init__(
            uvicorn.Config(
                app, lifespan="off", ws="none",
                log_config=None, access_log=False, proxy_headers=False, server_header=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )  # fmt: skip

    def serve_here(self) -> None:
        """Runs the server on this thread until it stops."""
        self.run([self._sock])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn; also calls `ready`."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn, which waits for open responses; closing the service ends them soon."""
        self._service.close()
        await super().shutdown(sockets)
