"""The routes that read a body, and answer until the client disconnects."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from edgespec.llm.embedding import Embedder
from edgespec.llm.llm import LLM
from edgespec.llm.pooling import TextTokens
from edgespec.llm.ranking import Reranker
from edgespec.serve.parts import Part
from edgespec.serve.protocols.embeddings import EmbeddingResult, require_embeddings
from edgespec.serve.protocols.fields import Json
from edgespec.serve.protocols.protocol import (
    Answer,
    AnswerEnd,
    ObjectProtocol,
    Origin,
    Protocol,
    RankProtocol,
    Signal,
    StreamEvent,
    TextBody,
    TextProtocol,
)
from edgespec.serve.protocols.rerank import RankResult, require_ranking
from edgespec.serve.queue import RequestQueue
from edgespec.serve.refusals import RequestError, as_refusal, internal_error, shorten_value
from edgespec.serve.served_model import ServedModel

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
        queue: who waits and who is answered, with the models.
        protocol: how the route is asked.
    """

    def __init__(self, queue: RequestQueue, protocol: Protocol) -> None:
        self.queue = queue
        self._parse = protocol.parse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        queue = self.queue
        try:
            data = await _read(Request(scope, receive), queue.body_limit)
        except ClientDisconnect:
            return

        async def send_json(make: Callable[[], Json]) -> None:
            pieces = await queue.side.do(lambda: _pieces(make()))
            length = str(sum(map(len, pieces))).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", length)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        async def work() -> None:
            make = partial(self._parse, data)
            body = await queue.in_place(make) if large else make()
            model = queue.models.find(getattr(body, "model", None))
            await self.answer(body, model, send_json, send)

        large = len(data) > _SMALL
        with queue.side.large() if large else nullcontext():
            await _until_disconnect(receive, work())

    @abstractmethod
    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, send: Send) -> None:
        """Answers a body by the model that it names, with JSON or otherwise."""


class ObjectEndpoint(Endpoint):
    """A route that answers at once."""

    def __init__(self, queue: RequestQueue, protocol: ObjectProtocol) -> None:
        super().__init__(queue, protocol)
        self._make = protocol.make

    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, _send: Send) -> None:
        """See `Endpoint`."""
        answer = await self.queue.in_place(partial(self._make, body, model))
        await send_json(lambda: answer)


class VectorEndpoint(Endpoint):
    """A route that makes vectors, for bodies as `VectorBody`."""

    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, _send: Send) -> None:
        """See `Endpoint`."""
        began = time.perf_counter_ns()
        queue = self.queue
        require_embeddings(model.bundle)
        queue.models.keep(model, body.keep_alive)

        def begin(llm: LLM) -> tuple[Embedder, list[list[int]]]:
            embedder = llm.embedder
            return embedder, body.tokens(embedder)

        def make(
            begun: tuple[Embedder, list[list[int]]], check: Callable[[], None]
        ) -> EmbeddingResult:
            embedder, tokens = begun
            vectors = body.vectors(embedder, tokens, check)
            return EmbeddingResult(vectors, sum(map(len, tokens)))

        found = await queue.in_turn(model, begin, make)
        queue.metrics.embedded(model.name, len(found.vectors), found.tokens)
        spent = time.perf_counter_ns() - began
        await send_json(partial(body.answer, found, model.name, spent))


class RankEndpoint(Endpoint):
    """A route that ranks documents, for bodies as `RerankRequest`."""

    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, _send: Send) -> None:
        """See `Endpoint`."""
        queue = self.queue
        require_ranking(model.bundle)

        def begin(llm: LLM) -> tuple[Reranker, list[TextTokens]]:
            reranker = llm.reranker(body.instruction)
            return reranker, reranker.texts(body.query, body.texts)

        def make(begun: tuple[Reranker, list[TextTokens]], check: Callable[[], None]) -> RankResult:
            reranker, texts = begun
            tokens = sum(len(each.tokens) for each in texts)
            return RankResult(reranker.scores(texts, check), tokens)

        found = await queue.in_turn(model, begin, make)
        queue.metrics.ranked(model.name, len(found.scores), found.tokens)
        await send_json(partial(body.answer, found, model.name))


class TextEndpoint(Endpoint):
    """A route that generates texts, and returns JSON or a stream."""

    def __init__(self, queue: RequestQueue, protocol: TextProtocol) -> None:
        super().__init__(queue, protocol)
        self._answer = protocol.answer
        self._origins = {
            name: Origin.of(name, each.bundle, each.tokenizer)
            for each in queue.models.served
            for name in each.names
        }

    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, send: Send) -> None:
        """See `Endpoint`."""
        asked = model.adapter(getattr(body, "model", None))
        answer = self._answer(body, self._origins[model.name if asked is None else asked.name])
        self.queue.models.keep(model, body.keep_alive)
        if body.only_unloads:
            self.queue.models.expect_end(model)
            await send_json(partial(answer.whole, ()))
        elif body.only_loads:
            await self.queue.in_turn(model, lambda _: None, lambda *_: None)
            await send_json(partial(answer.whole, ()))
        elif body.stream:
            await _stream(self.queue, body, model, _Sender(answer, send))
        else:
            results = await self.queue.texts(model, body.texts, _drop, body.cache_key)
            await send_json(partial(answer.whole, results))


class _Sender:
    """Sends an answer as it is made.

    Attributes:
        begun: whether the client has heard that its request was accepted.
    """

    def __init__(self, answer: Answer, send: Send) -> None:
        self.begun = False
        self._answer = answer
        self._send = send
        self._last = time.monotonic()

    async def show(self, part: Part | None) -> None:
        """Shows a part; None: that the request was accepted, or still waits."""
        if part is None and not self.begun:
            await self._begin()
        elif part is None:
            await self.put(Signal.WAITING)
        elif part.progress is None or self._answer.tells_all_progress or self._is_silent:
            await self.put(part)

    async def put(self, event: StreamEvent) -> None:
        """Sends what the answer says at an event."""
        last = isinstance(event, AnswerEnd | RequestError)
        data = self._answer.render(event)
        if data or last:
            self._last = time.monotonic()
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def _begin(self) -> None:
        self.begun = True
        headers = [
            (b"content-type", self._answer.media_type.encode()),
            (b"cache-control", b"no-cache"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.put(Signal.ACCEPTED)

    @property
    def _is_silent(self) -> bool:
        """Whether the client has not heard anything for a while."""
        return time.monotonic() - self._last >= _READING


async def _stream(queue: RequestQueue, body: TextBody, model: ServedModel, sender: _Sender) -> None:
    try:
        results = await queue.texts(model, body.texts, sender.show, body.cache_key)
    except Exception as error:
        if not sender.begun:
            raise
        if (refusal := as_refusal(error)) is None:
            _log.error("a text has failed", exc_info=error)
            refusal = internal_error()
        queue.metrics.refused(refusal.status)
        await sender.put(refusal)
        return
    await sender.put(AnswerEnd(results))


async def _drop(_part: Part | None) -> None:
    """Shows nothing."""


def endpoint(queue: RequestQueue, protocol: Protocol) -> Endpoint:
    """Returns the application that answers by a protocol."""
    if isinstance(protocol, TextProtocol):
        return TextEndpoint(queue, protocol)
    if isinstance(protocol, ObjectProtocol):
        return ObjectEndpoint(queue, protocol)
    if isinstance(protocol, RankProtocol):
        return RankEndpoint(queue, protocol)
    return VectorEndpoint(queue, protocol)


async def _read(request: Request, limit: int) -> bytes:
    """Reads the body of a request.

    Args:
        request: request to read.
        limit: maximum number of bytes.

    Raises:
        ClientDisconnect: if the client disconnects meanwhile.
        RequestError: if the body is too large, or a page of a browser may have posted it without
            being asked.
    """
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Browsers let pages of other sites post some content types without asking, but not JSON. Then
    # they say where the page is from; programs don't, of which many, such as curl, name no JSON.
    if content != "application/json" and _is_from_a_page(request):
        raise RequestError(
            415, f"the content type is {shorten_value(content)}: send application/json", "not_json"
        )
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise RequestError(
                413, f"the body has more than {limit} bytes: shorten it", "too_large"
            )
    return bytes(body)


def _is_from_a_page(request: Request) -> bool:
    """Whether a browser tells that a page posts a body, which may be another site's."""
    site = request.headers.get("sec-fetch-site", "none")
    return "origin" in request.headers or site not in ("none", "same-origin")


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
