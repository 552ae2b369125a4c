"""The OpenAPI document, with schemas from the classes that check the requests."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import edgespec
from edgespec.serve.protocols.fields import Json
from edgespec.serve.protocols.protocol import Protocol, TextProtocol
from edgespec.serve.protocols.table import (
    ANTHROPIC_ERRORS,
    OLLAMA_ERRORS,
    OPENAI_ERRORS,
    PROTOCOLS,
    error_form,
)
from edgespec.serve.tools import CALL_PATH, CALLS

_OBJECT: Json = {"application/json": {"schema": {"type": "object"}}}
_LIST: Json = {"application/json": {"schema": {"type": "array"}}}
_PLAIN: Json = {"text/plain": {"schema": {"type": "string"}}}
_PAGE: Json = {"text/html": {"schema": {"type": "string"}}}

# What is read, and whether it needs a key.
_READ = {
    "/v1/models": ("the models that are served", _OBJECT, True),
    "/v1/models/{model}": ("the model of this name", _OBJECT, True),
    "/lora-adapters": ("the adapters that are loaded with the first model", _LIST, True),
    "/api/tags": ("the models that are served", _OBJECT, True),
    "/api/ps": ("the models that are loaded", _OBJECT, True),
    "/api/version": ("the version of the API", _OBJECT, True),
    "/tools": ("the tools that the page offers to models", _OBJECT, True),
    "/": ("a chat page", _PAGE, False),
    "/metrics": ("metrics for Prometheus", _PLAIN, True),
    "/health": ("whether the server is running", _OBJECT, False),
    "/openapi.json": ("this document", _OBJECT, False),
}

_KEY = {"401": "the API key is missing or wrong"}
_REFUSALS = {
    **_KEY,
    "400": "the body is invalid, or asks for what is not supported",
    "403": "a page of another site asks for what it may not have",
    "404": "there is no such model",
    "413": "the body is too large",
    "415": "a page posts a body whose type is not JSON",
    "429": "too many requests are waiting",
    "500": "the server has failed",
    "503": "the server is shutting down, or memory has no room for the model",
}


_POSTED = {**PROTOCOLS, CALL_PATH: CALLS}
_BODIES: list[tuple[type[BaseModel], Literal["validation"]]] = [
    (protocol.body, "validation") for protocol in _POSTED.values()
]


def document(needs_key: bool, prefix: str = "") -> Json:
    """Returns the OpenAPI document of all routes.

    Args:
        needs_key: whether clients must send an API key.
        prefix: path before all routes.
    """
    _, schemas = models_json_schema(_BODIES, ref_template="#/components/schemas/{model}")
    errors = {e.name: e.schema for e in (OPENAI_ERRORS, OLLAMA_ERRORS, ANTHROPIC_ERRORS)}
    components: Json = {"schemas": {**schemas["$defs"], **errors}}
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "edgespec", "version": edgespec.__version__},
        **({"servers": [{"url": prefix}]} if prefix else {}),
        "components": components,
        "security": [{"key": []}] if needs_key else [],
        "paths": _paths(needs_key),
    }


def _paths(needs_key: bool) -> Json:
    """Returns what each route is read or asked for."""
    found: Json = {path: {"post": _makes(path, protocol)} for path, protocol in _POSTED.items()}
    for path, (text, content, keyed) in _READ.items():
        found.setdefault(path, {})["get"] = _reads(path, text, content, needs_key and keyed)
    return found


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


def _makes(path: str, protocol: Protocol) -> Json:
    reference = {"$ref": f"#/components/schemas/{protocol.body.__name__}"}
    streamed: Json = {}
    if isinstance(protocol, TextProtocol):
        streamed = {protocol.answer.media_type.partition(";")[0]: {}}
    return {
        "summary": protocol.summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}},
        "responses": _answers(path, protocol.summary, {**_OBJECT, **streamed}, _REFUSALS),
    }


def _answers(path: str, summary: str, content: Json, refusals: dict[str, str]) -> Json:
    schema = {"schema": {"$ref": f"#/components/schemas/{error_form(path).name}"}}
    return {
        "200": {"description": summary, "content": content},
        **{
            status: {"description": text, "content": {"application/json": schema}}
            for status, text in refusals.items()
        },
    }
