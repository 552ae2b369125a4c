"""The routes that generate text and return JSON or a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from edgespec.server.answers import Json
from edgespec.server.asked import Asked
from edgespec.server.bodies import read
from edgespec.server.metrics import Metrics
from edgespec.server.refusals import RequestError, fault, require_model
from edgespec.server.service import Part, TextService
from edgespec.server.writers import Origin, Writer

Body = TypeVar("Body", bound=Asked)

SendJson = Callable[[Json], Awaitable[None]]
"""Sends a JSON response."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """The model that is served, and its settings.

    Attributes:
        service: service that generates the texts.
        model: name of the model for clients.
        body_limit: maximum number of bytes in a request's body.
    """

    service: TextService
    model: str
    body_limit: int

    def require(self, model: str) -> None:
        """Checks that a client asks for the model that is served.

        Raises:
            RequestError: if it asks for another one.
        """
        require_model(model, self.model)


class TextEndpoint(Generic[Body]):
    """A route that generates text, as an ASGI application so that it can see clients disconnect.

    Args:
        served: model that is served.
        bodies: class of the request bodies.
        writers: what makes the writer for a body.
    """

    def __init__(
        self,
        served: Served,
        bodies: type[Body],
        writers: Callable[[Body, Origin], Writer],
    ) -> None:
        self._served = served
        self._service = served.service
        self._bodies = bodies
        self._writers = writers
        self._origin = Origin.of(served.service.llm, served.model)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        try:
            body = await read(Request(scope, receive), self._bodies, self._served.body_limit)
        except ClientDisconnect:
            return
        if body.model is not None:
            self._served.require(body.model)
        writer = self._writers(body, self._origin)
        if body.stream:
            work = self._stream(body, writer, _Events(send, writer))
        else:
            work = self._whole(body, writer, partial(_send_json, scope, receive, send))
        await until_disconnect(receive, work)

    async def _whole(self, body: Body, writer: Writer, send: SendJson) -> None:
        async def drop(_part: Part) -> None:
            pass

        results = await self._service.texts(partial(body.texts, self._service.llm), drop)
        await send(writer.whole(results))

    async def _stream(self, body: Body, writer: Writer, events: _Events) -> None:
        async def show(part: Part) -> None:
            await events.begin(writer.opening)
            await events.send(*writer.part(part))

        try:
            results = await self._service.texts(partial(body.texts, self._service.llm), show)
        except Exception as error:
            if not events.begun:
                raise
            refusal = as_refusal(error, self._service.metrics)
            await events.end(writer.failure(refusal))
            return
        await events.begin(writer.opening)
        await events.end(*writer.closing(results), *writer.last)


def as_refusal(error: Exception, metrics: Metrics) -> RequestError:
    """Logs and counts an error that ends a stream, and returns it as the client may see it."""
    if not isinstance(error, RequestError):
        _log.error("a text has failed", exc_info=error)
    refusal = error if isinstance(error, RequestError) else fault()
    metrics.refused(refusal.status)
    return refusal


class _Events:
    """The server-sent events of one response.

    Args:
        send: the ASGI server's function to send messages.
        writer: what names the events.

    Attributes:
        begun: whether the headers were sent, with status 200.
    """

    def __init__(self, send: Send, writer: Writer) -> None:
        self._send = send
        self._writer = writer
        self.begun = False

    async def begin(self, opening: Callable[[], Iterable[Json]]) -> None:
        """Sends the headers and the first events; further calls do nothing."""
        if self.begun:
            return
        self.begun = True
        # Event streams are always UTF-8, but some clients assume Latin-1 without a charset.
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.send(*opening())

    async def send(self, *events: Json | str, more: bool = True) -> None:
        """Sends events."""
        body = "".join(map(self._written, events)).encode()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def end(self, *events: Json | str) -> None:
        """Sends the last events."""
        await self.send(*events, more=False)

    def _written(self, event: Json | str) -> str:
        if isinstance(event, str):
            return f"data: {event}\n\n"
        name = self._writer.name(event)
        line = f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        return line if name is None else f"event: {name}\n{line}"


async def _send_json(scope: Scope, receive: Receive, send: Send, body: Json) -> None:
    await JSONResponse(body)(scope, receive, send)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Does the work, and cancels it if the client disconnects."""
    task = asyncio.ensure_future(work)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        await task
    except asyncio.CancelledError:
        if not watcher.done():  # this task was cancelled, not the work
            raise
    finally:
        watcher.cancel()
