"""Servers that listen at an address, for streamable HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from edgespec.mcp.entries import ServerEntry
from edgespec.mcp.processes import MOST_BYTES

_PATIENCE = httpx2.Timeout(30, read=300)  # seconds; a call has its own time


class ServerAddress:
    """A server that others have started.

    Attributes:
        problem: see `ServerProcess`; always empty, since errors of HTTP say what is wrong.
    """

    problem = ""

    def __init__(self, entry: ServerEntry) -> None:
        self._entry = entry

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Any]:
        """Yields streams of its messages and of those to it."""
        # Nothing compressed, whose size would not be known before it is there.
        headers = {**self._entry.headers, "accept-encoding": "identity"}
        client = httpx2.AsyncClient(
            headers=headers, timeout=_PATIENCE, event_hooks={"response": [_bounded]}
        )
        async with (
            client,
            streamable_http_client(
                self._entry.url, http_client=client, max_sse_event_size=MOST_BYTES
            ) as streams,
        ):
            yield streams


async def _bounded(response: httpx2.Response) -> None:
    """Lets reading a response fail once it has too much; events are bounded one by one."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("it compresses its answers", request=response.request)
    if not _has_events(response.headers) and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _BoundedStream(response.stream)


def _has_events(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").startswith("text/event-stream")


class _BoundedStream(httpx2.AsyncByteStream):
    """A stream of bytes, of which only so many are read."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MOST_BYTES:
                raise httpx2.StreamError(f"it has sent more than {MOST_BYTES >> 20} MiB at once")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
