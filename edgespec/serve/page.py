"""The chat page."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

_WEB = Path(__file__).parent / "web"
# Scripts of the page, each of which uses those before it.
_SCRIPTS = (
    "view",
    "settings",
    "answer",
    "store",
    "imports",
    "prompts",
    "markdown",
    "files",
    "models",
    "tools",
    "reply",
    "chat",
    "chats",
    "keys",
)
# Text from a model can do no harm: the page loads nothing and connects only to its own server.
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def page_route() -> Route:
    """Returns the route of the chat page: the files of `web/` in one, so that it needs no other."""

    def read(name: str) -> str:
        return (_WEB / name).read_text(encoding="utf-8")

    page = read("page.html").replace("{{style}}", read("page.css"))
    text = page.replace("{{script}}", "".join(read(f"{name}.js") for name in _SCRIPTS))

    async def get(_request: Request) -> Response:
        return HTMLResponse(text, headers=_PAGE_HEADERS)

    return Route("/", get)
