"""`POST /v1/embeddings`: vectors of texts, from a bundle of an embedding model."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from edgespec.api.embedding import Inputs
from edgespec.api.llm import LLM
from edgespec.runtime.arrays import Floats
from edgespec.server.answers import Json
from edgespec.server.bodies import read
from edgespec.server.endpoint import Served, until_disconnect
from edgespec.server.fields import Count, Fields, Text, Tokens
from edgespec.server.refusals import RequestError
from edgespec.server.service import TextService


class EmbeddingsRequest(Fields):
    """`POST /v1/embeddings`; `prompt_name` is not OpenAI's, see `LLM.embed`."""

    input: Text | Tokens | Annotated[list[Text | Tokens], Field(min_length=1, max_length=2048)]
    model: str | None = None
    dimensions: Count | None = None
    encoding_format: Literal["float", "base64"] | None = None
    prompt_name: str | None = None
    user: str | None = None


@dataclass(frozen=True)
class Embedded:
    """The vectors of a request.

    Attributes:
        vectors: [N, dimensions], a vector for each text.
        tokens: number of tokens of all texts.
    """

    vectors: Floats
    tokens: int


def require_embeddings(llm: LLM) -> None:
    """Checks that the model is for embeddings.

    Raises:
        RequestError: if it makes texts.
    """
    if llm.bundle.target.embedding is None:
        raise RequestError(
            400, "the model makes texts, and no embeddings: use an embedding model",
            "embeddings_not_supported", "model",
        )  # fmt: skip


def written(body: EmbeddingsRequest, found: Embedded, model: str) -> Json:
    """Returns the response.

    Args:
        body: the request.
        found: its vectors.
        model: name of the model for clients.
    """
    coded = body.encoding_format == "base64"
    data = [
        {
            "object": "embedding", "index": index,
            "embedding": _as_base64(vector) if coded else vector.tolist(),
        }
        for index, vector in enumerate(found.vectors)
    ]  # fmt: skip
    usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


async def embedded(
    service: TextService,
    texts: Inputs,
    dimensions: int | None = None,
    prompt_name: str | None = None,
) -> Embedded:
    """Makes the vectors of a request, when it is its turn; for arguments see `LLM.embed`.

    Raises:
        EdgespecError: as `LLM.embed`.
        RequestError: if the model makes texts, or as `TextService.in_turn`.
    """
    require_embeddings(service.llm)
    embedder = service.llm.embedder

    def make(tokens: list[list[int]], check: Callable[[], None]) -> Embedded:
        return Embedded(embedder.vectors(tokens, dimensions, check), sum(map(len, tokens)))

    found = await service.in_turn(lambda: embedder.tokens(texts, prompt_name), make)
    service.metrics.embedded(len(found.vectors), found.tokens)
    return found


class EmbeddingsEndpoint:
    """The route, as an ASGI application so that it can see clients disconnect.

    Args:
        served: model that is served.
    """

    def __init__(self, served: Served) -> None:
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        try:
            body = await read(Request(scope, receive), EmbeddingsRequest, self._served.body_limit)
        except ClientDisconnect:
            return
        if body.model is not None:
            self._served.require(body.model)

        async def answer() -> None:
            found = await embedded(
                self._served.service, body.input, body.dimensions, body.prompt_name
            )
            # Many vectors take a while to write, in which other requests go on.
            response = await asyncio.to_thread(
                lambda: JSONResponse(written(body, found, self._served.model))
            )
            await response(scope, receive, send)

        await until_disconnect(receive, answer())


def _as_base64(vector: Floats) -> str:
    """Returns the numbers as OpenAI's client reads them: little-endian float32."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
