"""The chat page, a single HTML file."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

_TEXT = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
# Text from a model can do no harm: the page loads nothing and connects only to its own server.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


async def page(_request: Request) -> Response:
    """Returns the page."""
    return HTMLResponse(_TEXT, headers=_HEADERS)
