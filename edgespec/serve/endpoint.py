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

from edgespec.llm.embedding import Embedder
from edgespec.llm.llm import LLM
from edgespec.serve.models import ServedModel
from edgespec.serve.parts import Part
from edgespec.serve.protocols.embeddings import EmbeddingResult, require_embeddings
from edgespec.serve.protocols.fields import Json, read
from edgespec.serve.protocols.protocol import Answer, ObjectProtocol, Origin, Protocol, TextProtocol
from edgespec.serve.queue import TextService
from edgespec.serve.refusals import as_refusal, fault

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
        protocol: how the route is asked.
    """

    def __init__(self, service: TextService, protocol: Protocol) -> None:
        self.service = service
        self._parse = protocol.parse

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
            make = partial(self._parse, data)
            body = await service.in_place(make) if large else make()
            model = service.models.find(getattr(body, "model", None))
            await self.answer(body, model, send_json, send)

        large = len(data) > _SMALL
        with service.large() if large else nullcontext():
            await _until_disconnect(receive, work())

    @abstractmethod
    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, send: Send) -> None:
        """Answers a body by the model that it names, with JSON or otherwise."""


class ObjectEndpoint(Endpoint):
    """A route that answers at once."""

    def __init__(self, service: TextService, protocol: ObjectProtocol) -> None:
        super().__init__(service, protocol)
        self._make = protocol.make

    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, _send: Send) -> None:
        """See `Endpoint`."""
        answer = await self.service.in_place(partial(self._make, body, model))
        await send_json(lambda: answer)


class VectorEndpoint(Endpoint):
    """A route that makes vectors, for bodies as `EmbeddingsRequest`."""

    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, _send: Send) -> None:
        """See `Endpoint`."""
        began = time.perf_counter_ns()
        service = self.service
        require_embeddings(model.bundle)

        def begin(llm: LLM) -> tuple[Embedder, list[list[int]]]:
            embedder = llm.embedder
            return embedder, embedder.tokens(
                body.inputs, getattr(body, "prompt_name", None), getattr(body, "cuts", False)
            )

        def make(
            begun: tuple[Embedder, list[list[int]]], check: Callable[[], None]
        ) -> EmbeddingResult:
            embedder, tokens = begun
            vectors = embedder.vectors(tokens, body.dimensions, check)
            return EmbeddingResult(vectors, sum(map(len, tokens)))

        found = await service.in_turn(model, begin, make)
        service.metrics.embedded(model.name, len(found.vectors), found.tokens)
        spent = time.perf_counter_ns() - began
        await send_json(partial(body.answer, found, model.name, spent))


class TextEndpoint(Endpoint):
    """A route that generates texts, and returns JSON or a stream."""

    def __init__(self, service: TextService, protocol: TextProtocol) -> None:
        super().__init__(service, protocol)
        self._answer = protocol.answer
        self._origins = {
            each.name: Origin.of(each.name, each.bundle, each.tokenizer)
            for each in service.models.served
        }

    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, send: Send) -> None:
        """See `Endpoint`."""
        answer = self._answer(body, self._origins[model.name])
        if body.only_loads:
            await self.service.in_turn(model, lambda _: None, lambda *_: None)
            await send_json(partial(answer.whole, ()))
        elif body.stream:
            await self._stream(body, model, answer, send)
        else:
            results = await self.service.texts(model, body.texts, _drop, body.cache_key)
            await send_json(partial(answer.whole, results))

    async def _stream(self, body: Any, model: ServedModel, answer: Answer, send: Send) -> None:
        begun = False
        last = time.monotonic()

        def events(all_: Iterable[Json | str]) -> str:
            return "".join(map(answer.written, all_))

        async def put(text: str, more: bool = True) -> None:
            nonlocal last
            if text or not more:
                last = time.monotonic()
                await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        async def show(part: Part | None) -> None:
            nonlocal begun
            if part is not None and part.progress is not None:
                if answer.tells_all_progress or time.monotonic() - last >= _READING:
                    await put(answer.reading(part.choice, part.progress))
            elif part is not None:
                await put(events(answer.part(part)))
            elif begun:
                await put(answer.waiting)
            else:
                begun = True
                headers = [
                    (b"content-type", answer.media_type.encode()),
                    (b"cache-control", b"no-cache"),
                ]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await put(events(answer.opening()))

        try:
            results = await self.service.texts(model, body.texts, show, body.cache_key)
        except Exception as error:
            if not begun:
                raise
            if (refusal := as_refusal(error)) is None:
                _log.error("a text has failed", exc_info=error)
                refusal = fault()
            self.service.metrics.refused(refusal.status)
            await put(answer.written(answer.failure(refusal)), more=False)
            return
        await put(events([*answer.closing(results), *answer.last]), more=False)


async def _drop(_part: Part | None) -> None:
    """Shows nothing."""


def endpoint(service: TextService, protocol: Protocol) -> Endpoint:
    """Returns the application that answers by a protocol."""
    if isinstance(protocol, TextProtocol):
        return TextEndpoint(service, protocol)
    if isinstance(protocol, ObjectProtocol):
        return ObjectEndpoint(service, protocol)
    return VectorEndpoint(service, protocol)


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
