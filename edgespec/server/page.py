"""The chat page: the files of `web/` in one."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

_FOLDER = Path(__file__).parent / "web"
_SCRIPTS = ("view.js", "settings.js", "answer.js", "chat.js")  # each uses those before it
# Text from a model can do no harm: the page loads nothing and connects only to its own server.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _assembled() -> str:
    """Returns the page with its style and its scripts, so that it needs no other route."""
    style, script = _read("page.css"), "".join(map(_read, _SCRIPTS))
    return _read("page.html").replace("{{style}}", style).replace("{{script}}", script)


_TEXT = _assembled()


async def page(_request: Request) -> Response:
    """Returns the page."""
    return HTMLResponse(_TEXT, headers=_HEADERS)
