"""`POST /v1/embeddings`, which says that a bundle has none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from edgespec.server.bodies import read
from edgespec.server.endpoint import Served
from edgespec.server.fields import Count, Fields, Text, Tokens
from edgespec.server.refusals import RequestError


class EmbeddingsRequest(Fields):
    """`POST /v1/embeddings`."""

    input: Text | Tokens | Annotated[list[Text | Tokens], Field(min_length=1, max_length=2048)]
    model: str | None = None
    dimensions: Count | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None


def embeddings(served: Served) -> Callable[[Request], Awaitable[Response]]:
    """Returns the route, which refuses every request.

    The target's graphs return rows of logits. An embedding is made of rows before the head, which
    an export would have to add as an output (`export/heads/taps.py` does that for draft heads),
    with the pooling that the checkpoint's `modules.json` names.
    """

    async def refuse(request: Request) -> Response:
        try:
            body = await read(request, EmbeddingsRequest, served.body_limit)
        except ClientDisconnect:
            return Response()
        if body.model is not None:
            served.require(body.model)
        raise RequestError(
            400, "the model makes texts, and no embeddings: use a server of an embedding model",
            "embeddings_not_supported", "model",
        )  # fmt: skip

    return refuse
