"""The tools of all servers that a user gives, for models to call."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from mcp import types

from edgespec.errors import InputError, reason
from edgespec.mcp.connections import Connection
from edgespec.mcp.entries import read_entries
from edgespec.mcp.names import model_names
from edgespec.mcp.results import ToolResult
from edgespec.runtime.text.tools.descriptions import describe_tool

MOST_CALLS = 32
"""Number of calls after which an answer goes on without further ones."""

_LONGEST_ABOUT = 4096  # characters of a tool's description
_LONGEST_SCHEMA = 1 << 16  # characters of the schema of its arguments

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class ServedTool:
    """A tool of a server.

    Attributes:
        name: by which models call it.
        connection: to its server.
        tool: what the server calls it.
        described: the tool in the format of OpenAI's API.
    """

    name: str
    connection: Connection
    tool: str
    described: Mapping[str, Any]

    @property
    def server(self) -> str:
        """The name of its server."""
        return self.connection.entry.name

    @property
    def is_allowed(self) -> bool:
        """Whether it is called without asking."""
        return self.connection.entry.allows(self.tool)


class Toolbox:
    """Servers that run, and their tools; a context manager.

    The servers are asked by a thread of its own, so that any thread may call tools.

    Args:
        connections: to all servers.

    Attributes:
        tools: the tools by the names by which models call them.

    Raises:
        ToolServerError: if one cannot be used.
    """

    def __init__(self, connections: Sequence[Connection]) -> None:
        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its errors are told by ours
        self._connections = connections
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self.tools = _named(self._do(self._listed()).result())
        except BaseException:
            self.close()
            raise

    @classmethod
    def of(cls, path: Path) -> Self:
        """Returns the tools of the servers of a file.

        Raises:
            InputError: see `read_entries`.
            OSError: see `read_entries`.
            ToolServerError: if a server cannot be used.
        """
        return cls([Connection(each) for each in read_entries(path)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the servers that were started here."""
        if self._thread.is_alive():
            self._do(self._closed()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def call(self, name: str, arguments: dict[str, Any], most: int) -> Future[ToolResult]:
        """Calls a tool, until the future that is returned is cancelled.

        Args:
            name: name by which models call it.
            arguments: its arguments.
            most: largest number of characters of its result.

        Raises:
            InputError: if there is no such tool.
        """
        if (found := self.tools.get(name)) is None:
            raise InputError(f"there is no tool {reason(name, 60)}: {', '.join(self.tools)} are")
        return self._do(found.connection.call(found.tool, arguments, most))

    async def _listed(self) -> list[tuple[Connection, list[types.Tool]]]:
        found = await asyncio.gather(*(each.tools() for each in self._connections))
        return list(zip(self._connections, found, strict=True))

    async def _closed(self) -> None:
        await asyncio.gather(*(each.close() for each in self._connections))
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            each.cancel()
        if others:
            await asyncio.wait(others, timeout=1)
        await self._loop.shutdown_asyncgens()

    def _do(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def _named(listed: Sequence[tuple[Connection, Sequence[types.Tool]]]) -> dict[str, ServedTool]:
    """Returns tools by their names for models, without those that no model can be told of."""
    all_tools = [
        (connection, tool)
        for connection, tools in listed
        for tool in tools
        if tool.name not in connection.entry.disabled_tools
    ]
    names = model_names([(connection.entry.name, tool.name) for connection, tool in all_tools])
    found: dict[str, ServedTool] = {}
    for name, (connection, tool) in zip(names, all_tools, strict=True):
        try:
            described = _described(name, tool)
        except InputError as error:
            _log.warning("a tool of %s is left out: %s", reason(connection.entry.name, 60), error)
            continue
        found[name] = ServedTool(name, connection, tool.name, described)
    return found


def _described(name: str, tool: types.Tool) -> Mapping[str, Any]:
    """Returns a tool in the format of OpenAI's API.

    Raises:
        InputError: if the schema of its arguments cannot be used.
    """
    about = (tool.description or tool.title or "")[:_LONGEST_ABOUT]
    function = {"name": name, "description": about, "parameters": tool.input_schema}
    described = describe_tool({"type": "function", "function": function})
    if len(str(tool.input_schema)) > _LONGEST_SCHEMA:
        raise InputError(f"tool {name}: its schema has more than {_LONGEST_SCHEMA} characters")
    return described
