"""A connection to one server: what is asked of it, and for how long."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from mcp import Client, MCPError, types
from mcp.types import CONNECTION_CLOSED
from pydantic import ValidationError

from edgespec import __version__
from edgespec.errors import ToolServerError, reason
from edgespec.mcp.addresses import ServerAddress
from edgespec.mcp.entries import ServerEntry
from edgespec.mcp.processes import ServerProcess
from edgespec.mcp.results import ToolResult, result_of

START_SECONDS = 60.0
"""Longest time until a server has started and told its tools; some are downloaded first."""

CALL_SECONDS = 120.0
"""Longest time of a call."""

MOST_TOOLS = 512
"""Largest number of tools of a server."""

T = TypeVar("T")
Ask = Callable[[Client], Awaitable[T]]


class Connection:
    """A server of tools, which is started when it is first asked, and again if it has ended.

    All methods belong to one event loop.

    Args:
        entry: the server.
        start_seconds: see `START_SECONDS`.
        call_seconds: see `CALL_SECONDS`.
    """

    def __init__(
        self,
        entry: ServerEntry,
        start_seconds: float = START_SECONDS,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self.entry = entry
        self._start_seconds = start_seconds
        self._call_seconds = call_seconds
        self._end = ServerAddress(entry) if entry.url else ServerProcess(entry)
        self._owner: asyncio.Task[None] | None = None  # in which the connection begins and ends
        self._ready: asyncio.Future[Client] | None = None

    async def tools(self) -> list[types.Tool]:
        """Returns the tools of the server.

        Raises:
            ToolServerError: if it does not start, tell them in time, or has too many.
        """
        return await self._ask(_tools, self._start_seconds)

    async def call(self, tool: str, arguments: dict[str, Any], most: int) -> ToolResult:
        """Calls a tool.

        Args:
            tool: the server's name of it.
            arguments: its arguments.
            most: see `result_of`.

        Raises:
            ToolServerError: if the server refuses, has ended, or does not answer in time.
        """
        params = types.CallToolRequestParams(name=tool, arguments=arguments)
        request = types.CallToolRequest(params=params)

        async def call(client: Client) -> types.CallToolResult:
            # Not `call_tool`, which has results checked by patterns that the server wrote.
            return await client.session.send_request(request, types.CallToolResult)

        return result_of(await self._ask(call, self._call_seconds), most)

    async def close(self) -> None:
        """Ends the connection, and the server if it was started here."""
        if self._owner is not None:
            self._owner.cancel()
            await asyncio.wait({self._owner})

    async def _ask(self, ask: Ask[T], seconds: float) -> T:
        """Returns what the server answers.

        Raises:
            ToolServerError: see `call`.
        """
        client, owner = await self._open()
        asking = asyncio.ensure_future(ask(client))
        try:
            await asyncio.wait({asking, owner}, timeout=seconds, return_when=FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            if owner.done():
                raise self._ended(owner)
            raise self._error(f"has not answered within {seconds:g} s")
        except MCPError as error:
            if error.error.code != CONNECTION_CLOSED:
                raise self._error(f"refuses: {error}") from error
            owner.cancel()
            await asyncio.wait({owner})
            raise self._error(f"gives no answer ({self._end.problem or error})") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise self._error(f"does not keep to MCP ({place}: {first['msg']})") from error
        except (ValueError, RuntimeError) as error:
            raise self._error(f"does not keep to MCP ({reason(error)})") from error
        finally:
            asking.cancel()

    async def _open(self) -> tuple[Client, asyncio.Task[None]]:
        """Returns the open connection, or a new one, and the task in which it is open.

        Raises:
            ToolServerError: if it cannot be opened.
        """
        if self._owner is None or self._owner.done() or self._ready is None:
            self._end = type(self._end)(self.entry)
            self._ready = asyncio.get_running_loop().create_future()
            self._owner = asyncio.create_task(self._own(self._ready))
        owner = self._owner
        ready = self._ready
        begun: set[asyncio.Future[Any]] = {owner, ready}
        await asyncio.wait(begun, timeout=self._start_seconds, return_when=FIRST_COMPLETED)
        if ready.done():
            return ready.result(), owner
        if owner.done():
            raise self._ended(owner)
        await self.close()
        raise self._error(f"has not started within {self._start_seconds:g} s")

    async def _own(self, ready: asyncio.Future[Client]) -> None:
        about = types.Implementation(name="edgespec", version=__version__)
        async with Client(
            self._end.streams(), cache=None, client_info=about, read_timeout_seconds=None
        ) as client:
            ready.set_result(client)
            await asyncio.Event().wait()  # until it is cancelled, or the connection fails

    def _ended(self, owner: asyncio.Task[None]) -> ToolServerError:
        """Returns why a connection could not be opened, or has ended."""
        error = None if owner.cancelled() else owner.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        missing = isinstance(error, FileNotFoundError) and self.entry.command
        said = reason(error or "") or type(error).__name__
        why = f"there is no program {self.entry.command[0]}" if missing else said
        return self._error(f"cannot be used ({self._end.problem or why})")

    def _error(self, what: str) -> ToolServerError:
        return ToolServerError(
            f"the MCP server {reason(self.entry.name, 60)} {what}: look at what --mcp says of it, "
            'or write "disabled": true there'
        )


async def _tools(client: Client) -> list[types.Tool]:
    """Returns all tools, of which the server tells some at a time.

    Raises:
        ValueError: if they do not end.
    """
    found: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(MOST_TOOLS):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None or len(found) > MOST_TOOLS:
            break
    if cursor is not None or len(found) > MOST_TOOLS:
        raise ValueError(f"it has more than {MOST_TOOLS} tools, or a list without an end")
    return found
