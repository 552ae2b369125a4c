"""The routes that generate text and return JSON or a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from edgespec.server.answers import Answer, Json, TokenTexts
from edgespec.server.bodies import read
from edgespec.server.metrics import Metrics
from edgespec.server.refusals import RequestError, fault
from edgespec.server.requests import TextRequest
from edgespec.server.service import Part, TextService

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
        if model != self.model:
            raise RequestError(
                404, f"there is no model of that name: use {self.model!r}",
                "model_not_found", "model",
            )  # fmt: skip


class TextEndpoint:
    """A route that generates text, as an ASGI application so that it can see clients disconnect.

    Args:
        served: model that is served.
        bodies: class of the request bodies.
        answers: class of the responses.
    """

    def __init__(
        self,
        served: Served,
        bodies: type[TextRequest],
        answers: type[Answer],
    ) -> None:
        self._served = served
        self._service = served.service
        self._bodies = bodies
        self._answers = answers
        self._texts = TokenTexts(served.service.llm.tokenizer)
        self._fingerprint = f"fp_{served.service.llm.bundle.digest[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        try:
            body = await read(Request(scope, receive), self._bodies, self._served.body_limit)
        except ClientDisconnect:
            return
        if body.model is not None:
            self._served.require(body.model)
        answer = self._answers(self._served.model, self._fingerprint, self._texts)
        if body.stream:
            work = self._stream(body, answer, _Events(send))
        else:
            work = self._whole(body, answer, partial(_send_json, scope, receive, send))
        await until_disconnect(receive, work)

    async def _whole(self, body: TextRequest, answer: Answer, send: SendJson) -> None:
        async def drop(_part: Part) -> None:
            pass

        result = await self._service.text(partial(body.begin, self._service.llm), drop)
        await send(answer.whole(result))

    async def _stream(self, body: TextRequest, answer: Answer, events: _Events) -> None:
        reported = 0  # tokens whose log-probabilities were sent

        async def show(part: Part) -> None:
            nonlocal reported
            await events.begin(answer.opening())
            reported += len(part.logprobs)
            await events.send(answer.part(part))

        begin = partial(body.begin, self._service.llm)
        try:
            result = await self._service.text(begin, show)
        except Exception as error:
            if not events.begun:
                raise
            await events.end(as_refusal(error, self._service.metrics).body)
            return
        await events.begin(answer.opening())
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        await events.send(*answer.closing(result, reported, usage))
        await events.end("[DONE]")


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

    Attributes:
        begun: whether the headers were sent, with status 200.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def begin(self, opening: Iterable[Json]) -> None:
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
        await self.send(*opening)

    async def send(self, *events: Json | str, more: bool = True) -> None:
        """Sends events."""
        body = "".join(f"data: {_line(event)}\n\n" for event in events).encode()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def end(self, event: Json | str) -> None:
        """Sends the last event."""
        await self.send(event, more=False)


def _line(event: Json | str) -> str:
    return event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)


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
