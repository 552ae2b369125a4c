"""The routes that give texts: a body in, an answer or a stream of server-sent events out."""

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
from edgespec.server.refusals import RequestError, fault
from edgespec.server.requests import TextRequest
from edgespec.server.service import Desk, Part

Give = Callable[[Json], Awaitable[None]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """What the server has.

    Attributes:
        desk: which makes the texts.
        model: as clients call it.
        body_limit: bytes of a request's body at most.
    """

    desk: Desk
    model: str
    body_limit: int

    def require(self, model: str) -> None:
        """Nothing, where a client calls the model by its name.

        Raises:
            RequestError: if it means another.
        """
        if model != self.model:
            raise RequestError(
                404, f"there is no model of that name here: use {self.model!r}",
                "model_not_found", "model",
            )  # fmt: skip


class TextEndpoint:
    """One route, as an ASGI application: it must know when its client goes.

    Args:
        served: what the server has.
        asks: the bodies it reads.
        answers: the shape of what it gives.
    """

    def __init__(
        self,
        served: Served,
        asks: type[TextRequest],
        answers: type[Answer],
    ) -> None:
        self._served = served
        self._asks = asks
        self._answers = answers
        self._texts = TokenTexts(served.desk.llm.tokenizer)
        self._fingerprint = f"fp_{served.desk.llm.bundle.digest[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            asked = await read(Request(scope, receive), self._asks, self._served.body_limit)
        except ClientDisconnect:
            return
        if asked.model is not None:
            self._served.require(asked.model)
        answer = self._answers(self._served.model, self._fingerprint, self._texts)
        if asked.stream:
            work = self._stream(asked, answer, _Events(send))
        else:
            work = self._whole(asked, answer, partial(_send_json, scope, receive, send))
        await _until_gone(receive, work)

    async def _whole(self, asked: TextRequest, answer: Answer, give: Give) -> None:
        async def drop(_part: Part) -> None:
            pass

        result = await self._served.desk.text(partial(asked.begin, self._served.desk.llm), drop)
        await give(answer.whole(result))

    async def _stream(self, asked: TextRequest, answer: Answer, events: _Events) -> None:
        told = 0

        async def show(part: Part) -> None:
            nonlocal told
            await events.begin(answer.opening())
            told += len(part.logprobs)
            await events.give(answer.part(part))

        begin = partial(asked.begin, self._served.desk.llm)
        try:
            result = await self._served.desk.text(begin, show)
        except Exception as error:
            if not events.begun:
                raise
            if not isinstance(error, RequestError):
                _log.exception("a text has failed")
            refusal = error if isinstance(error, RequestError) else fault()
            self._served.desk.metrics.refused(refusal.status)
            await events.end(refusal.body)
            return
        await events.begin(answer.opening())
        usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
        await events.give(*answer.closing(result, told, usage))
        await events.end("[DONE]")


class _Events:
    """Server-sent events of one answer.

    Args:
        send: of the ASGI server.

    Attributes:
        begun: the status is out, and it is 200.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def begin(self, opening: Iterable[Json]) -> None:
        """Once: headers and the first events."""
        if self.begun:
            return
        self.begun = True
        # Clients take text without a charset for Latin-1, though events have no other than this.
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.give(*opening)

    async def give(self, *events: Json | str, more: bool = True) -> None:
        """Further events."""
        body = "".join(f"data: {_line(event)}\n\n" for event in events).encode()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def end(self, event: Json | str) -> None:
        """The last one."""
        await self.give(event, more=False)


def _line(event: Json | str) -> str:
    return event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)


async def _send_json(scope: Scope, receive: Receive, send: Send, body: Json) -> None:
    await JSONResponse(body)(scope, receive, send)


async def _until_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, and cancel it when the client has gone."""
    task = asyncio.ensure_future(work)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        await task
    except asyncio.CancelledError:
        if not watcher.done():  # it is us who are to end
            raise
    finally:
        watcher.cancel()
