"""The routes of Ollama's API."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import edgespec
from edgespec.server.bodies import read
from edgespec.server.endpoint import Served
from edgespec.server.ollama.answers import OllamaChatAnswer, OllamaGenerateAnswer
from edgespec.server.ollama.embeddings import (
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaVectorsEndpoint,
)
from edgespec.server.ollama.endpoint import OllamaTextEndpoint
from edgespec.server.ollama.models import described, listed, require, running
from edgespec.server.ollama.requests import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from edgespec.server.refusals import RequestError

PREFIX = "/api/"
"""How the paths of all routes begin; their errors have Ollama's format."""

# The version of Ollama whose API this is. Clients compare its numbers with what they need.
_VERSION = "0.12.11"
_NOT_HERE = {
    "pull": "POST", "push": "POST", "create": "POST", "copy": "POST", "delete": "DELETE",
}  # fmt: skip


def routes(served: Served) -> list[Route]:
    """Returns the routes for the model that is served."""

    async def tags(_request: Request) -> Response:
        return JSONResponse(listed(served))

    async def loaded(_request: Request) -> Response:
        return JSONResponse(running(served))

    async def version(_request: Request) -> Response:
        return JSONResponse({"version": _VERSION, "edgespec": edgespec.__version__})

    async def show(request: Request) -> Response:
        try:
            body = await read(request, OllamaShowRequest, served.body_limit, any_type=True)
        except ClientDisconnect:
            return Response()
        require(served, body.model or body.name)
        return JSONResponse(described(served))

    made = (
        ("chat", OllamaTextEndpoint(served, OllamaChatRequest, OllamaChatAnswer)),
        ("generate", OllamaTextEndpoint(served, OllamaGenerateRequest, OllamaGenerateAnswer)),
        ("embed", OllamaVectorsEndpoint(served, OllamaEmbedRequest)),
        ("embeddings", OllamaVectorsEndpoint(served, OllamaEmbeddingsRequest)),
    )
    return [
        *(Route(PREFIX + name, endpoint, methods=["POST"]) for name, endpoint in made),
        Route(f"{PREFIX}tags", tags),
        Route(f"{PREFIX}ps", loaded),
        Route(f"{PREFIX}version", version),
        Route(f"{PREFIX}show", show, methods=["POST"]),
        *(Route(PREFIX + name, _not_here, methods=[method]) for name, method in _NOT_HERE.items()),
    ]


async def _not_here(request: Request) -> Response:
    raise RequestError(
        400, f"{request.scope['path']} is not supported: this server has one model, which it was "
        "started with, and makes texts with it: /openapi.json lists all routes",
        "unsupported",
    )  # fmt: skip
