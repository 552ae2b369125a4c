"""The part of the OpenAPI document about Ollama's API."""

from __future__ import annotations

from typing import Any

from edgespec.server.ollama.embeddings import OllamaEmbeddingsRequest, OllamaEmbedRequest
from edgespec.server.ollama.requests import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)

Json = dict[str, Any]

BODIES = (
    OllamaChatRequest, OllamaGenerateRequest, OllamaEmbedRequest, OllamaEmbeddingsRequest,
    OllamaShowRequest,
)  # fmt: skip
"""The classes of request bodies."""

ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
"""The schema of errors, as `OllamaError`."""

_OBJECT: Json = {"application/json": {"schema": {"type": "object"}}}
_LINES: Json = {"application/x-ndjson": {}}
_KEY = {"401": "the API key is missing or wrong"}
_REFUSALS = {
    **_KEY,
    "400": "the body is invalid, or asks for what is not supported",
    "404": "there is no such model",
    "413": "the body is too large",
    "415": "the body comes from a web page and is not JSON",
}
_FAILURES = {
    "429": "too many requests are waiting",
    "500": "the server has failed",
    "503": "the server is shutting down",
}


def paths(needs_key: bool) -> Json:
    """Returns the descriptions of all routes by their paths.

    Args:
        needs_key: whether clients must send an API key.
    """
    return {
        "/api/chat": _posts("the answer in a conversation", "OllamaChatRequest", _LINES),
        "/api/generate": _posts("the answer to a prompt", "OllamaGenerateRequest", _LINES),
        "/api/embed": _posts("vectors of texts", "OllamaEmbedRequest", {}),
        "/api/embeddings": _posts("the vector of a text", "OllamaEmbeddingsRequest", {}),
        "/api/show": _posts("the model of this name", "OllamaShowRequest", {}),
        "/api/tags": _gets("the model that is served", needs_key),
        "/api/ps": _gets("the model that is loaded", needs_key),
        "/api/version": _gets("the version of the API", needs_key),
    }


def _gets(summary: str, needs_key: bool) -> Json:
    answer = {"200": {"description": summary, "content": _OBJECT}}
    refusals = _refused(_KEY) if needs_key else {}
    security: Json = {} if needs_key else {"security": []}
    return {"get": {"summary": summary, "responses": {**answer, **refusals}, **security}}


def _posts(summary: str, schema: str, stream: Json) -> Json:
    answer = {"200": {"description": summary, "content": {**_OBJECT, **stream}}}
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {
        "post": {
            "summary": summary,
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": reference}},
            },
            "responses": {**answer, **_refused({**_REFUSALS, **_FAILURES})},
        }
    }


def _refused(refusals: dict[str, str]) -> Json:
    schema = {"schema": {"$ref": "#/components/schemas/OllamaError"}}
    return {
        status: {"description": text, "content": {"application/json": schema}}
        for status, text in refusals.items()
    }
