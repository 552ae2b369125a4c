"""The routes that generate text and return JSON or a stream of JSON lines."""

from __future__ import annotations

import json
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from edgespec.api.generation import GenerationStream
from edgespec.server.answers import TokenTexts
from edgespec.server.bodies import read
from edgespec.server.endpoint import Served, as_refusal, until_disconnect
from edgespec.server.ollama.answers import Json, OllamaAnswer
from edgespec.server.ollama.models import require
from edgespec.server.ollama.requests import OllamaTextRequest
from edgespec.server.service import Part


class OllamaTextEndpoint:
    """A route that generates text, as an ASGI application so that it can see clients disconnect.

    Args:
        served: model that is served.
        bodies: class of the request bodies.
        answers: class of the responses.
    """

    def __init__(
        self, served: Served, bodies: type[OllamaTextRequest], answers: type[OllamaAnswer]
    ) -> None:
        self._served = served
        self._service = served.service
        self._bodies = bodies
        self._answers = answers
        self._texts = TokenTexts(served.service.llm.tokenizer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        limit = self._served.body_limit
        try:
            body = await read(Request(scope, receive), self._bodies, limit, any_type=True)
        except ClientDisconnect:
            return
        require(self._served, body.model)
        answer = self._answers(body.model, self._texts)
        if body.silent:
            await JSONResponse(answer.loaded())(scope, receive, send)
            return
        begin = partial(_begin, self._served, body, answer)

        async def whole() -> None:
            async def drop(_part: Part) -> None:
                pass

            [result] = await self._service.texts(begin, drop)
            await JSONResponse(answer.whole(result))(scope, receive, send)

        async def stream() -> None:
            lines, reported = _Lines(send), 0

            async def show(part: Part) -> None:
                nonlocal reported
                reported += len(part.logprobs)
                await lines.send(*answer.part(part))

            try:
                [result] = await self._service.texts(begin, show)
            except Exception as error:
                if not lines.begun:
                    raise
                refusal = as_refusal(error, self._service.metrics)
                await lines.end({"error": str(refusal)})
                return
            await lines.end(*answer.closing(result, reported))

        await until_disconnect(receive, stream() if body.streamed else whole())


def _begin(served: Served, body: OllamaTextRequest, answer: OllamaAnswer) -> list[GenerationStream]:
    llm = served.service.llm
    request = body.request(llm)
    answer.note(request)
    return [request.begin(llm)]


class _Lines:
    """The lines of one response, each a JSON object.

    Args:
        send: the ASGI server's function to send messages.

    Attributes:
        begun: whether the headers were sent, with status 200.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def send(self, *lines: Json, more: bool = True) -> None:
        """Sends lines, and before the first ones the headers."""
        if not lines:
            return
        if not self.begun:
            self.begun = True
            headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        body = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def end(self, *lines: Json) -> None:
        """Sends the last lines."""
        await self.send(*lines, more=False)
