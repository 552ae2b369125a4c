"""`POST /api/embed`, and `/api/embeddings`, which came before it: vectors of texts.

Fields and answers are those of https://docs.ollama.com/api/embed. A text that does not fit the
context is refused whatever `truncate` says, as one of a chat is.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import Annotated

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from edgespec.runtime.arrays import Floats
from edgespec.server.bodies import read
from edgespec.server.embeddings import Embedded, embedded
from edgespec.server.endpoint import Served, until_disconnect
from edgespec.server.fields import LONG, Count, Noted, Text
from edgespec.server.ollama.messages import Json
from edgespec.server.ollama.models import require


class OllamaVectorsRequest(Noted, ABC):
    """What both routes have in common."""

    model: Text
    dimensions: Count | None = None

    @property
    @abstractmethod
    def texts(self) -> list[str]:
        """The texts; with none, the request only loads the model with Ollama."""

    @abstractmethod
    def answer(self, vectors: list[Floats], tokens: int, nanoseconds: int) -> Json:
        """Returns the response.

        Args:
            vectors: a vector for each text.
            tokens: number of tokens of all texts.
            nanoseconds: time since the request came.
        """


class OllamaEmbedRequest(OllamaVectorsRequest):
    """`POST /api/embed`."""

    input: str | Annotated[list[str], LONG] | None = None
    truncate: bool | None = None

    @property
    def texts(self) -> list[str]:  # noqa: D102 - of the base class
        if isinstance(self.input, list):
            return self.input
        return [self.input] if self.input else []

    def answer(self, vectors: list[Floats], tokens: int, nanoseconds: int) -> Json:  # noqa: D102
        return {
            "model": self.model,
            "embeddings": [vector.tolist() for vector in vectors],
            "total_duration": nanoseconds,
            "load_duration": 0,
            "prompt_eval_count": tokens,
        }


class OllamaEmbeddingsRequest(OllamaVectorsRequest):
    """`POST /api/embeddings`."""

    prompt: str | None = None

    @property
    def texts(self) -> list[str]:  # noqa: D102
        return [self.prompt] if self.prompt else []

    def answer(self, vectors: list[Floats], tokens: int, nanoseconds: int) -> Json:  # noqa: D102
        return {"embedding": vectors[0].tolist() if vectors else []}


class OllamaVectorsEndpoint:
    """One of the routes, as an ASGI application so that it can see clients disconnect.

    Args:
        served: model that is served.
        bodies: class of the request bodies.
    """

    def __init__(self, served: Served, bodies: type[OllamaVectorsRequest]) -> None:
        self._served = served
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        began, limit = time.perf_counter_ns(), self._served.body_limit
        try:
            body = await read(Request(scope, receive), self._bodies, limit, any_type=True)
        except ClientDisconnect:
            return
        require(self._served, body.model)

        async def answer() -> None:
            # Without texts, the model is asked all the same, since it may be none for embeddings.
            found = await embedded(self._served.service, body.texts, body.dimensions)

            def written(found: Embedded) -> JSONResponse:
                spent = time.perf_counter_ns() - began
                return JSONResponse(body.answer([*found.vectors], found.tokens, spent))

            response = await asyncio.to_thread(written, found)
            await response(scope, receive, send)

        await until_disconnect(receive, answer())
