"""The tools of MCP servers that the page offers to models, and their calls, for the page alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from edgespec.errors import EdgespecError
from edgespec.serve.endpoint import Endpoint, SendJson
from edgespec.serve.protocols.fields import Fields, Json
from edgespec.serve.protocols.protocol import Protocol
from edgespec.serve.queue import RequestQueue
from edgespec.serve.refusals import RequestError, shorten_value
from edgespec.serve.served_model import ServedModel

if TYPE_CHECKING:
    from edgespec.mcp.toolbox import ServedTool, Toolbox

CALL_PATH = "/tools/call"
_MOST_AT_ONCE = 16


class ToolCallRequest(Fields):
    """`POST /tools/call`: a call that a model has made and a user allows."""

    model: str | None = None
    name: str
    arguments: Json


CALLS = Protocol(ToolCallRequest, "the result of a tool's call, for this server's own page")


def tool_routes(queue: RequestQueue) -> list[Route]:
    """Returns the routes of tools; without any there is an empty list of them."""
    box = queue.toolbox

    async def listed(request: Request) -> Response:
        require_own_page(request)
        if box is None:
            return JSONResponse({"tools": [], "most_calls": 0})
        from edgespec.mcp.toolbox import MOST_CALLS

        tools = list(map(_told, box.tools.values()))
        return JSONResponse({"tools": tools, "most_calls": MOST_CALLS})

    return [Route("/tools", listed), Route(CALL_PATH, ToolEndpoint(queue), methods=["POST"])]


def _told(tool: ServedTool) -> Json:
    return {**tool.described, "server": tool.server, "allowed": tool.is_allowed}


class ToolEndpoint(Endpoint):
    """The route by which the page has a tool called."""

    def __init__(self, queue: RequestQueue) -> None:
        super().__init__(queue, CALLS)
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request of the page's."""
        require_own_page(Request(scope))
        await super().__call__(scope, receive, send)

    async def answer(self, body: Any, model: ServedModel, send_json: SendJson, _send: Send) -> None:
        """See `Endpoint`."""
        box = self.queue.toolbox
        if box is None or body.name not in box.tools:
            raise RequestError(
                404, f"there is no tool {shorten_value(body.name)}: /tools lists them", param="name"
            )
        if self._running >= _MOST_AT_ONCE:
            raise RequestError(429, f"{self._running} calls are running: try again later")
        self._running += 1
        try:
            found = await self._result(box, body, model)
        finally:
            self._running -= 1
        await send_json(lambda: found)

    async def _result(self, box: Toolbox, body: ToolCallRequest, model: ServedModel) -> Json:
        from edgespec.mcp.results import ToolResult, most_characters

        most = most_characters(model.plan.context)
        try:
            found = await asyncio.wrap_future(box.call(body.name, body.arguments, most))
        except EdgespecError as error:
            found = ToolResult(f"The call has failed: {error}", failed=True)
        sees = model.bundle.target.vision is not None
        return {
            "text": found.told(sees),
            "images": list(found.images) if sees else [],
            "failed": found.failed,
        }


def require_own_page(request: Request) -> None:
    """Checks that the page of this server asks, which no page of another site may do for it.

    Raises:
        RequestError: if another page asks, or a program that does not say that it is none.
    """
    headers = request.headers
    origin = headers.get("origin")
    # Browsers send the first where a page is from this machine or encrypted, and elsewhere the
    # second with what is posted.
    if site := headers.get("sec-fetch-site"):
        own = site == "same-origin"
    elif origin is not None:
        own = urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    else:
        own = request.method == "GET"
    if not own:
        raise RequestError(
            403, "tools are called by the page of this server alone: open it at /", "cross_site"
        )
