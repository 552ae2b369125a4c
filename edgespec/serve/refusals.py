"""Errors that clients see, in OpenAI's format."""

from __future__ import annotations

import json
from typing import Any

from edgespec.errors import ContextLengthError, InputError, printable

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
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPES.get(self.status, usual)
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def as_refusal(error: Exception) -> RequestError | None:
    """Returns an error as clients may see it; None for one that only the log may have."""
    if not isinstance(error, InputError):
        return error if isinstance(error, RequestError) else None
    # Some clients shorten a conversation if they find this code, or words of the message.
    long = isinstance(error, ContextLengthError)
    return RequestError(400, str(error), "context_length_exceeded" if long else "invalid_value")


def require_model(asked: str | None, served: str) -> None:
    """Checks that a client asks for the model that is there, or for none by name.

    Raises:
        RequestError: if it asks for another one.
    """
    if asked not in (None, served):
        raise RequestError(
            404, f"there is no model of that name: use {served!r}", "model_not_found", "model"
        )


def shutting_down() -> RequestError:
    """Returns the error for requests during shutdown."""
    return RequestError(
        503, "the server is shutting down: try again when it is back", "shutting_down"
    )


def internal_error() -> RequestError:
    """Returns the error for internal failures, without details, which could name local files."""
    return RequestError(500, "the server has failed: its log has the details", "internal_error")


def shorten_value(value: Any) -> str:
    """Formats a client's value for an error message, shortened to `SHOWN` characters.

    A text stands in quotes as everywhere in messages; all else is JSON, as it was sent.
    """
    if isinstance(value, str | list):  # of which all would be written
        value = value[: SHOWN + 1]
    if isinstance(value, str):
        text = repr(value)
    else:
        text = printable(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
