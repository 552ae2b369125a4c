"""The routes that read a body, and answer until the client disconnects."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from edgespec.serve.answers import Origin, Writer
from edgespec.serve.bodies import Json, parsed, read
from edgespec.serve.models import ServedModel
from edgespec.serve.parts import Part
from edgespec.serve.refusals import as_refusal, fault
from edgespec.serve.service import Show, TextService

_SMALL = 1 << 16  # bytes of a body that are parsed in less than a few milliseconds
_READING = 1.0  # seconds without a word until a stream tells how much of its prompt was read
_PIECE = 1 << 16  # characters of an answer that are written at a time

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

_log = logging.getLogger(__name__)

SendJson = Callable[[Callable[[], Json]], Awaitable[None]]
"""Sends what a function returns, which is called and written on another thread."""


class Endpoint(ABC):
    """A route as an ASGI application, so that it can see clients disconnect.

    Args:
        service: service that generates the texts, with its models.
        bodies: class of the request bodies.
    """

    def __init__(self, service: TextService, bodies: type[Any]) -> None:
        self.service = service
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        service = self.service
        try:
            data = await read(Request(scope, receive), service.body_limit)
        except ClientDisconnect:
            return

        async def send_json(make: Callable[[], Json]) -> None:
            pieces = await service.aside(lambda: _pieces(make()))
            length = str(sum(map(len, pieces))).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", length)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        async def work() -> None:
            make = partial(parsed, self._bodies, data)
            body = await service.in_place(make) if large else make()
            model = service.models.find(getattr(body, "model", None))
            await self.answer(body, model, send_json, send)

        large = len(data) > _SMALL
        with service.large() if large else nullcontext():
            await _until_disconnect(receive, work())

    @abstractmethod
    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, send: Send) -> None:
        """Answers a body by the model that it names, with JSON or otherwise."""


class JsonEndpoint(Endpoint):
    """A route that answers at once.

    Args:
        service: service that generates the texts, with its models.
        bodies: class of the request bodies.
        make: returns the answer to a body, for which no model is loaded; called on a thread.
    """

    def __init__(
        self, service: TextService, bodies: type[Any], make: Callable[[Any, ServedModel], Json]
    ) -> None:
        super().__init__(service, bodies)
        self._make = make

    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, _send: Send) -> None:
        """See `Endpoint`."""
        answer = await self.service.in_place(partial(self._make, body, model))
        await send_json(lambda: answer)


class TextEndpoint(Endpoint):
    """A route that generates texts, and returns JSON or a stream.

    Args:
        service: service that generates the texts, with its models.
        bodies: class of the request bodies, with `stream` and `texts` as `requests.RequestBody` has
            them.
        writers: what makes the writer for a body.
    """

    def __init__(
        self, service: TextService, bodies: type[Any], writers: Callable[[Any, Origin], Writer]
    ) -> None:
        super().__init__(service, bodies)
        self._writers = writers
        self._origins = {
            each.name: Origin.of(each.name, each.bundle, each.tokenizer)
            for each in service.models.served
        }

    def writer(self, body: Any, model: ServedModel) -> Any:
        """Returns the writer for a body."""
        return self._writers(body, self._origins[model.name])

    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, send: Send) -> None:
        """See `Endpoint`."""
        writer = self.writer(body, model)
        if body.stream:
            await self._stream(body, model, writer, send)
            return

        async def drop(_part: Part | None) -> None:
            pass

        results = await self._texts(body, model, drop)
        await send_json(partial(writer.whole, results))

    async def _texts(self, body: Any, model: ServedModel, show: Show) -> list[Any]:
        key = getattr(body, "prompt_cache_key", None) or None
        return await self.service.texts(model, body.texts, show, key)

    async def _stream(self, body: Any, model: ServedModel, writer: Writer, send: Send) -> None:
        begun = False
        last = time.monotonic()

        def events(all_: Iterable[Json | str]) -> str:
            return "".join(map(writer.written, all_))

        async def put(text: str, more: bool = True) -> None:
            nonlocal last
            if text or not more:
                last = time.monotonic()
                await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        async def show(part: Part | None) -> None:
            nonlocal begun
            if part is not None and part.progress is not None:
                if writer.tells_all_progress or time.monotonic() - last >= _READING:
                    await put(writer.reading(part.choice, part.progress))
            elif part is not None:
                await put(events(writer.part(part)))
            elif begun:
                await put(writer.waiting)
            else:
                begun = True
                headers = [
                    (b"content-type", writer.media_type.encode()),
                    (b"cache-control", b"no-cache"),
                ]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await put(events(writer.opening()))

        try:
            results = await self._texts(body, model, show)
        except Exception as error:
            if not begun:
                raise
            if (refusal := as_refusal(error)) is None:
                _log.error("a text has failed", exc_info=error)
                refusal = fault()
            self.service.metrics.refused(refusal.status)
            await put(writer.written(writer.failure(refusal)), more=False)
            return
        await put(events([*writer.closing(results), *writer.last]), more=False)


def _pieces(answer: Json) -> list[bytes]:
    """Returns JSON in pieces, between which other threads go on."""
    pieces = list[bytes]()
    text = list[str]()
    size = 0
    for part in _JSON.iterencode(answer):
        text.append(part)
        size += len(part)
        if size > _PIECE:
            pieces.append("".join(text).encode())
            text = []
            size = 0
    return [*pieces, "".join(text).encode()]


async def _until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
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
