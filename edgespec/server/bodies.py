"""Parsing of request bodies into classes of `Fields`, with readable errors."""

from __future__ import annotations

import re
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from edgespec.server.fields import Fields
from edgespec.server.refusals import SHOWN, RequestError, shown

# How pydantic names members of unions.
_UNION_MEMBER = re.compile(r"str$|constrained-|list\[|literal\[|Chosen|FunctionChoice|AllowedTools")

Body = TypeVar("Body", bound=Fields)
Checked = TypeVar("Checked", bound=BaseModel)


async def read(request: Request, kind: type[Body], limit: int, any_type: bool = False) -> Body:
    """Reads and checks the body of a request.

    Args:
        request: request to read.
        kind: class of the body.
        limit: maximum number of bytes.
        any_type: whether programs may leave the content type as it is, as curl does with `-d`. Web
            pages, whose requests have an origin, may not.

    Raises:
        ClientDisconnect: if the client disconnects meanwhile.
        RequestError: if the body is too large or invalid.
    """
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Browsers let pages of other sites post some content types without asking, but not JSON.
    if content != "application/json" and not (any_type and "origin" not in request.headers):
        raise RequestError(
            415, f"the content type is {shown(content)}: send application/json", "not_json"
        )
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise RequestError(
                413, f"the body has more than {limit} bytes: shorten it", "too_large"
            )
    return parsed(kind, bytes(body))


def parsed(kind: type[Checked], data: bytes, what: str = "the body") -> Checked:
    """Parses JSON and checks it.

    Args:
        kind: class of the result.
        data: JSON in UTF-8.
        what: name of the whole in error messages.

    Raises:
        RequestError: if it is invalid.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise refusal(error, what) from error


def refusal(error: ValidationError, what: str = "the body") -> RequestError:
    """Describes the most deeply nested error of a body."""
    found = error.errors(include_url=False, include_context=False)
    deepest = max(found, key=lambda each: len(each["loc"]))
    if deepest["type"] == "json_invalid":
        return RequestError(400, f"{what} is not UTF-8 JSON: {deepest['msg']}", "invalid_json")
    name = _name(deepest["loc"])[:SHOWN]
    if deepest["type"] == "extra_forbidden":
        return RequestError(400, f"{name} is not supported: leave it out", "unknown", name)
    if deepest["type"] == "missing":
        return RequestError(400, f"{name} is missing: give it", "missing", name)
    wanted = [each["msg"] for each in found if _name(each["loc"])[:SHOWN] == name]
    where = name or what
    message = f"{where} is {shown(deepest['input'])}: {' or '.join(dict.fromkeys(wanted))}"
    return RequestError(400, message, "invalid_value", name or None)


def _name(place: tuple[int | str, ...]) -> str:
    """Returns a field's name without the types that pydantic adds for members of a union."""
    return ".".join(part for part in map(str, place) if not _UNION_MEMBER.match(part))
