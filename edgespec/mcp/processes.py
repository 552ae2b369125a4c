"""Servers as programs that are started here, and talk over their stdin and stdout, line by line."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import psutil
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import types
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from edgespec.errors import reason
from edgespec.mcp.entries import ServerEntry

MOST_BYTES = 8 << 20
"""Largest message of a server."""

_MOST_RUBBISH = 1000  # lines that are no message, such as those of a program that logs to stdout
_TAIL = 4096  # last bytes of what a server logs
_GRACE = 0.5  # seconds in which a server whose stdin was closed ends by itself

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


class ServerProcess:
    """A program that is a server.

    Unlike the transport of `mcp`, it bounds what a server may write, and keeps its log off the
    terminal.
    """

    def __init__(self, entry: ServerEntry) -> None:
        self._entry = entry
        self._said = b""
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why nothing more comes, and what it has logged last; empty if that is not known."""
        lines = self._said.decode(errors="replace").split("\n")
        last = next((each for each in reversed(lines) if each.strip()), "")
        return ": ".join(filter(None, (self._problem, reason(last))))

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Streams]:
        """Starts it; yields streams of its messages and of those to it, and ends it behind them.

        Raises:
            OSError: if it cannot be started.
        """
        process = await self._start()
        incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.create_task(self._read(process, incoming)),
            asyncio.create_task(self._write(process, outgoing, incoming)),
            asyncio.create_task(self._listen(process)),
        ]
        try:
            yield received, sent
        finally:
            for each in tasks:
                each.cancel()
            await _shielded(_end(process))
            for stream in (incoming, received, sent, outgoing):
                stream.close()

    async def _start(self) -> Process:
        program, *arguments = self._entry.command
        env = {**get_default_environment(), **self._entry.env}
        apart: dict[str, Any] = {"start_new_session": True}  # so that Ctrl-C is not for it
        if sys.platform == "win32":
            apart = {"creationflags": 0x0800_0200}  # CREATE_NO_WINDOW | CREATE_NEW_PROCESS_GROUP
        return await asyncio.create_subprocess_exec(
            shutil.which(program, path=env.get("PATH", os.defpath)) or program,
            *arguments,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=MOST_BYTES,
            env=env,
            cwd=self._entry.cwd,
            **apart,
        )

    async def _read(self, process: Process, incoming: Incoming) -> None:
        """Hands on what comes until it is too much, or the program ends."""
        assert process.stdout is not None
        rubbish = 0
        with incoming, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while rubbish < _MOST_RUBBISH:
                try:
                    line = await process.stdout.readline()
                except ValueError:
                    self._problem = f"it has sent more than {MOST_BYTES >> 20} MiB at once"
                    return
                if not line:
                    self._problem = "it has ended"
                    return
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    rubbish += bool(line.strip())
                    await asyncio.sleep(0)
                else:
                    await incoming.send(SessionMessage(message))
            self._problem = "it writes to stdout what is no message"

    async def _write(
        self,
        process: Process,
        outgoing: MemoryObjectReceiveStream[SessionMessage],
        incoming: Incoming,
    ) -> None:
        assert process.stdin is not None
        try:
            async for each in outgoing:
                text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
        except OSError:  # it reads no more: nothing will come back
            incoming.close()

    async def _listen(self, process: Process) -> None:
        """Keeps the end of what it logs."""
        assert process.stderr is not None
        while piece := await process.stderr.read(_TAIL):
            self._said = (self._said + piece)[-_TAIL:]


async def _end(process: Process) -> None:
    """Ends a program, and those that it has started."""
    family = [psutil.Process(process.pid)] if process.returncode is None else []
    for each in tuple(family):
        with suppress(psutil.Error):
            family += each.children(recursive=True)
    assert process.stdin is not None
    process.stdin.close()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _GRACE)
    for each in family:
        with suppress(psutil.Error):
            each.kill()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _GRACE)


async def _shielded(work: Any) -> None:
    """Does work to its end, also in a task that is cancelled."""
    with anyio.CancelScope(shield=True):
        await asyncio.shield(work)
