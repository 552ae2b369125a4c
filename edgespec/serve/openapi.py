"""The OpenAPI document, with schemas from the classes that check the requests."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import edgespec
from edgespec.serve.bodies import Json
from edgespec.serve.embeddings import EmbeddingsRequest
from edgespec.serve.infill import InfillRequest
from edgespec.serve.ollama.requests import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from edgespec.serve.rendering import RenderRequest
from edgespec.serve.requests import ChatRequest, CompletionRequest
from edgespec.serve.response_requests import ResponsesRequest
from edgespec.serve.routes import DetokenizeRequest, TokenizeRequest

_OBJECT: Json = {"application/json": {"schema": {"type": "object"}}}
_EVENTS: Json = {**_OBJECT, "text/event-stream": {}}
_LINES: Json = {**_OBJECT, "application/x-ndjson": {}}
_PLAIN: Json = {"text/plain": {"schema": {"type": "string"}}}
_PAGE: Json = {"text/html": {"schema": {"type": "string"}}}

# What has a body: its class, what it answers with, and in which form.
_MADE: dict[str, tuple[type[BaseModel], str, Json]] = {
    "/v1/completions": (CompletionRequest, "the continuation of a prompt", _EVENTS),
    "/v1/chat/completions": (ChatRequest, "the answer in a conversation", _EVENTS),
    "/v1/responses": (ResponsesRequest, "the answer to items of a conversation", _EVENTS),
    "/v1/embeddings": (EmbeddingsRequest, "vectors of texts", _OBJECT),
    "/infill": (InfillRequest, "the text at a cursor", _EVENTS),
    "/tokenize": (TokenizeRequest, "the tokens of a text", _OBJECT),
    "/detokenize": (DetokenizeRequest, "the text of tokens", _OBJECT),
    "/render": (RenderRequest, "HTML of an answer in Markdown, by blocks", _OBJECT),
    "/api/chat": (OllamaChatRequest, "the answer in a conversation", _LINES),
    "/api/generate": (OllamaGenerateRequest, "the answer to a prompt", _LINES),
    "/api/embed": (OllamaEmbedRequest, "vectors of texts", _OBJECT),
    "/api/embeddings": (OllamaEmbeddingsRequest, "the vector of a text", _OBJECT),
    "/api/show": (OllamaShowRequest, "the model of this name", _OBJECT),
}
# What is read, and whether it needs a key.
_READ = {
    "/v1/models": ("the models that are served", _OBJECT, True),
    "/v1/models/{model}": ("the model of this name", _OBJECT, True),
    "/api/tags": ("the models that are served", _OBJECT, True),
    "/api/ps": ("the models that are loaded", _OBJECT, True),
    "/api/version": ("the version of the API", _OBJECT, True),
    "/": ("a chat page", _PAGE, False),
    "/metrics": ("metrics for Prometheus", _PLAIN, True),
    "/health": ("whether the server is running", _OBJECT, False),
    "/openapi.json": ("this document", _OBJECT, False),
}

_STRING_OR_NULL: Json = {"type": ["string", "null"]}
_FACTS: Json = {
    "message": {"type": "string"},
    "type": {"type": "string"},
    "param": _STRING_OR_NULL,
    "code": _STRING_OR_NULL,
}
_KEY = {"401": "the API key is missing or wrong"}
_REFUSALS = {
    **_KEY,
    "400": "the body is invalid, or asks for what is not supported",
    "404": "there is no such model",
    "413": "the body is too large",
    "415": "a page posts a body whose type is not JSON",
    "429": "too many requests are waiting",
    "500": "the server has failed",
    "503": "the server is shutting down, or memory has no room for the model",
}


_BODIES: list[tuple[type[BaseModel], Literal["validation"]]] = [
    (kind, "validation") for kind, _, _ in _MADE.values()
]


def document(needs_key: bool) -> Json:
    """Returns the OpenAPI document of all routes.

    Args:
        needs_key: whether clients must send an API key.
    """
    _, schemas = models_json_schema(_BODIES, ref_template="#/components/schemas/{model}")
    error: Json = {"type": "object", "required": [*_FACTS], "properties": _FACTS}
    components: Json = {
        "schemas": {
            **schemas["$defs"],
            "Error": _with_error(error),
            "OllamaError": _with_error({"type": "string"}),
        }
    }
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "edgespec", "version": edgespec.__version__},
        "components": components,
        "security": [{"key": []}] if needs_key else [],
        "paths": {
            **{path: {"post": _makes(path, *made)} for path, made in _MADE.items()},
            **{
                path: {"get": _reads(path, text, content, needs_key and keyed)}
                for path, (text, content, keyed) in _READ.items()
            },
        },
    }


def _with_error(error: Json) -> Json:
    return {"type": "object", "required": ["error"], "properties": {"error": error}}


def _reads(path: str, summary: str, content: Json, needs_key: bool) -> Json:
    refusals: Json = _KEY if needs_key else {}
    further: Json = {} if needs_key else {"security": []}
    if "{model}" in path:
        refusals = {**refusals, "404": "there is no model of this name"}
        schema = {"type": "string", "minLength": 1}
        further["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": schema}
        ]
    return {"summary": summary, "responses": _answers(path, summary, content, refusals), **further}


def _makes(path: str, body: type, summary: str, content: Json) -> Json:
    reference = {"$ref": f"#/components/schemas/{body.__name__}"}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}},
        "responses": _answers(path, summary, content, _REFUSALS),
    }


def _answers(path: str, summary: str, content: Json, refusals: dict[str, str]) -> Json:
    kind = "OllamaError" if path.startswith("/api/") else "Error"
    schema = {"schema": {"$ref": f"#/components/schemas/{kind}"}}
    return {
        "200": {"description": summary, "content": content},
        **{
            status: {"description": text, "content": {"application/json": schema}}
            for status, text in refusals.items()
        },
    }
