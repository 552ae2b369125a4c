"""Errors that clients see, in OpenAI's format."""

from __future__ import annotations

from typing import Any

SHOWN = 40
"""Maximum number of characters of a client's value in an error message."""

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class RequestError(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        message: what is wrong, and the remedy; without paths of this machine.
        code: error code for programs.
        param: field of the body that is wrong.
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
        """The error as JSON values in OpenAI's format."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": str(self),
            "type": _TYPES.get(self.status, kind),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}


def shutting_down() -> RequestError:
    """Returns the error for requests during shutdown."""
    return RequestError(
        503, "the server is shutting down: try again when it is back", "shutting_down"
    )


def fault() -> RequestError:
    """Returns the error for internal failures, without details, which could name local files."""
    return RequestError(500, "the server has failed: its log has the details", "internal_error")


def shown(value: Any) -> str:
    """Formats a value for an error message, shortened to `SHOWN` characters."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
