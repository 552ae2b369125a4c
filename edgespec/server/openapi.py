"""The OpenAPI document, with schemas from the classes that check the requests."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

import edgespec
from edgespec.server.embeddings import EmbeddingsRequest
from edgespec.server.infill import InfillRequest
from edgespec.server.ollama import document as ollama
from edgespec.server.requests import ChatRequest, CompletionRequest
from edgespec.server.response_requests import ResponsesRequest
from edgespec.server.tokens import DetokenizeRequest, TokenizeRequest

Json = dict[str, Any]

_BODIES = (
    CompletionRequest, ChatRequest, ResponsesRequest, EmbeddingsRequest, InfillRequest,
    TokenizeRequest, DetokenizeRequest, *ollama.BODIES,
)  # fmt: skip
_OBJECT: Json = {"application/json": {"schema": {"type": "object"}}}
_EVENTS: Json = {"text/event-stream": {}}
_PLAIN: Json = {"text/plain": {"schema": {"type": "string"}}}
_PAGE: Json = {"text/html": {"schema": {"type": "string"}}}
_STRING_OR_NULL: Json = {"type": ["string", "null"]}
_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _STRING_OR_NULL,
                "code": _STRING_OR_NULL,
            },
        }
    },
}
_REFUSALS = {
    "400": "the body is invalid",
    "404": "there is no such model",
    "413": "the body is too large",
    "415": "the body is not JSON",
    "429": "too many requests are waiting",
    "500": "the server has failed",
    "503": "the server is shutting down",
}


def document(needs_key: bool) -> Json:
    """Returns the OpenAPI document of all routes.

    Args:
        needs_key: whether clients must send an API key.
    """
    _, schemas = models_json_schema(
        [(each, "validation") for each in _BODIES],
        ref_template="#/components/schemas/{model}",
    )
    components: Json = {
        "schemas": {**schemas["$defs"], "Error": _ERROR, "OllamaError": ollama.ERROR}
    }
    security: list[Json] = []
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        security = [{"key": []}]
    return {
        "openapi": "3.1.0",
        "info": {"title": "edgespec", "version": edgespec.__version__},
        "components": components,
        "security": security,
        "paths": {
            "/v1/models": _reads("the model that is served", _OBJECT, needs_key),
            "/v1/models/{model}": _reads("the model of this name", _OBJECT, needs_key, "model"),
            "/v1/completions": _makes("the continuation of a prompt", "CompletionRequest"),
            "/v1/chat/completions": _makes("the answer in a conversation", "ChatRequest"),
            "/v1/responses": _makes("the answer to items of a conversation", "ResponsesRequest"),
            "/v1/embeddings": _makes("vectors of texts", "EmbeddingsRequest", streams=False),
            "/infill": _makes("the text at a cursor", "InfillRequest"),
            "/tokenize": _makes("the tokens of a text", "TokenizeRequest", streams=False),
            "/detokenize": _makes("the text of tokens", "DetokenizeRequest", streams=False),
            **ollama.paths(needs_key),
            "/": _reads("a chat page", _PAGE, False),
            "/metrics": _reads("metrics for Prometheus", _PLAIN, needs_key),
            "/health": _reads("whether the server is running", _OBJECT, False),
            "/openapi.json": _reads("this document", _OBJECT, False),
        },
    }


def _reads(summary: str, content: Json, needs_key: bool, name: str | None = None) -> Json:
    responses = {"200": {"description": summary, "content": content}}
    further: Json = {} if needs_key else {"security": []}
    if needs_key:
        responses["401"] = _refusal("the API key is missing or wrong")
    if name is not None:
        responses["404"] = _refusal("there is no model of this name")
        schema = {"type": "string", "minLength": 1}
        further["parameters"] = [{"name": name, "in": "path", "required": True, "schema": schema}]
    return {"get": {"summary": summary, "responses": responses, **further}}


def _makes(summary: str, schema: str, streams: bool = True) -> Json:
    content = {**_OBJECT, **_EVENTS} if streams else _OBJECT
    return _reads_body(summary, schema, {"200": {"description": summary, "content": content}})


def _reads_body(summary: str, schema: str, responses: Json) -> Json:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    refusals = {"401": "the API key is missing or wrong", **_REFUSALS}
    return {
        "post": {
            "summary": summary,
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": reference}},
            },
            "responses": responses | {status: _refusal(text) for status, text in refusals.items()},
        }
    }


def _refusal(text: str) -> Json:
    schema = {"schema": {"$ref": "#/components/schemas/Error"}}
    return {"description": text, "content": {"application/json": schema}}
