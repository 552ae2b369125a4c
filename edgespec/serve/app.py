"""The ASGI application: routes, access control and error responses."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from edgespec.errors import EdgespecError
from edgespec.serve.access import Access
from edgespec.serve.endpoint import endpoint
from edgespec.serve.metrics import Metrics
from edgespec.serve.model_list import model_routes
from edgespec.serve.openapi import document
from edgespec.serve.page import page_route
from edgespec.serve.protocols.ollama import models as ollama
from edgespec.serve.protocols.table import PROTOCOLS, error_form
from edgespec.serve.queue import RequestQueue
from edgespec.serve.refusals import RequestError, as_refusal, internal_error
from edgespec.serve.tools import tool_routes

_log = logging.getLogger(__name__)

_HOST = re.compile(r"[a-z0-9._-]{1,64}")
_OPEN = ("/", "/health", "/openapi.json")  # routes that need no API key
_PHRASES = {
    404: "this route does not exist: /openapi.json lists all routes",
    405: "this route does not support the method: /openapi.json lists the methods",
}


def application(
    queue: RequestQueue, hosts: Iterable[str] | None, access: Access | None = None
) -> Starlette:
    """Creates the ASGI application.

    Args:
        queue: who waits and who is answered, with the models.
        hosts: allowed host names in requests; None for any.
        access: who may use it; None: everybody.
    """
    access = access or Access()
    origins = access.origins
    metrics = queue.metrics
    described = document(bool(access.keys), access.prefix)

    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def numbers(_request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def openapi(_request: Request) -> Response:
        return JSONResponse(described)

    def refuse(request: Request, error: Exception) -> Response:
        return _refused(error, metrics, request.scope["path"])

    pages = Middleware(
        CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"]
    )
    gate = Middleware(_Gate, access=access, hosts=hosts, metrics=metrics)
    below = [Middleware(_Prefix, prefix=access.prefix)] if access.prefix else []
    routes = [
        page_route(),
        Route("/health", health),
        Route("/metrics", numbers),
        Route("/openapi.json", openapi),
        *model_routes(queue.models),
        *ollama.routes(queue.models),
        *tool_routes(queue),
        *(
            Route(path, endpoint(queue, protocol), methods=["POST"])
            for path, protocol in PROTOCOLS.items()
        ),
    ]
    return Starlette(
        routes=list(_joined(routes)),
        # CORS comes before the gate, since browsers send preflight requests without the key.
        middleware=[*below, *([pages, gate] if origins else [gate])],
        exception_handlers=dict.fromkeys(
            (RequestError, EdgespecError, HTTPException, Exception), refuse
        ),
    )


def _joined(routes: Iterable[Route]) -> Iterator[Route]:
    """Joins routes of one path, so that who asks by another method is told all that there are."""
    by_path = defaultdict[str, list[Route]](list)
    for each in routes:
        by_path[each.path].append(each)
    for path, found in by_path.items():
        apps = {method: each.app for each in found for method in each.methods or ()}
        yield found[0] if len(found) == 1 else Route(path, _ByMethod(apps), methods=[*apps])


class _ByMethod:
    """Calls the application of a request's method."""

    def __init__(self, apps: Mapping[str, ASGIApp]) -> None:
        self._apps = apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._apps[scope["method"]](scope, receive, send)


class _Prefix:
    """Takes the path before all routes off, unless a proxy has done so."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == self._prefix:  # links of the page are relative to a folder
            await RedirectResponse(f"{self._prefix}/")(scope, receive, send)
            return
        if path.startswith(f"{self._prefix}/"):
            scope["path"] = path.removeprefix(self._prefix)
        await self._app(scope, receive, send)


class _Gate:
    """Refuses requests with an unknown host name or without an API key.

    Checking the host name prevents DNS rebinding: a page of another site may let its own host name
    point to this machine, so that a browser would let it read the answers.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        hosts: Iterable[str] | None,
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._access = access
        self._hosts = None if hosts is None else frozenset(hosts)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await _refused(refusal, self._metrics, scope["path"])(scope, receive, send)

    def _refusal(self, request: Request) -> RequestError | None:
        host = request.headers.get("host", "").lower()
        if self._hosts is not None and _without_port(host) not in self._hosts:
            return RequestError(
                403,
                f"the server only accepts requests to localhost, not to {_told(host)}: use "
                f"that name, or start it with --allow-host {_told(host)}",
                "unknown_host",
            )
        # What a page of another site asks for, which no Origin tells of where nothing is posted.
        foreign = request.headers.get("sec-fetch-site") == "cross-site"
        known = {"*", request.headers.get("origin")}.intersection(self._access.origins)
        if foreign and not known and request.scope["path"].startswith(ollama.PREFIX):
            return RequestError(
                403,
                "pages of other sites may not use this server: start it with --allow-origin",
                "cross_site",
            )
        # The path that routing uses. A URL would also depend on the untrusted Host header.
        if not self._access.keys or request.scope["path"] in _OPEN:
            return None
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = [request.headers.get("x-api-key", "")]  # as Anthropic's clients send it
        given += [key] if scheme.lower() == "bearer" else []
        # Headers are bytes, which Starlette decodes as Latin-1.
        owner = self._access.owner(each.encode("latin-1") for each in given)
        if owner is not None:
            _log.info("%s asks for %s", owner, request.scope["path"])
            return None
        return RequestError(
            401,
            "the API key is missing or wrong: send it as Authorization: Bearer KEY, or as "
            "x-api-key: KEY",
            "invalid_api_key",
        )


def _told(host: str) -> str:
    """Returns a host's name as a refusal names it; what is none is not repeated."""
    return name if _HOST.fullmatch(name := _without_port(host)) else "NAME"


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _refused(error: Exception, metrics: Metrics, path: str) -> Response:
    """Returns the response for an error of a route."""
    headers: dict[str, str] = {}
    refusal = as_refusal(error)
    if isinstance(error, HTTPException):
        refusal = RequestError(error.status_code, _PHRASES.get(error.status_code, error.detail))
        headers.update(error.headers or {})
    if refusal is None:
        if isinstance(error, EdgespecError):  # the ASGI server logs other errors
            _log.error("%s", error)
        refusal = internal_error()
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.status in (429, 503):
        headers["retry-after"] = "1"
    metrics.refused(refusal.status)
    return JSONResponse(error_form(path).body(refusal), refusal.status, headers)
