"""What the server answers where it gives no text: OpenAI's shape of an error."""

from __future__ import annotations

from typing import Any

SHOWN = 40
"""Characters of what a client has sent, in an error."""

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class RequestError(Exception):
    """A request that is not served.

    Args:
        status: of HTTP.
        message: what is wrong, and the remedy; no path of this machine.
        code: a word for programs.
        param: the field of the body that is wrong.
    """

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        """As OpenAI's clients read it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": str(self),
            "type": _TYPES.get(self.status, kind),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}


def shutting_down() -> RequestError:
    """No further text, or not the rest of one."""
    return RequestError(
        503, "the server is shutting down: ask again when it is back", "shutting_down"
    )


def fault() -> RequestError:
    """Something failed that the client cannot mend; what it was may name files of this machine."""
    return RequestError(500, "the server has failed: its log says how", "internal_error")


def shown(value: Any) -> str:
    """A value in an error."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
