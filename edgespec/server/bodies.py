"""Bodies as they come in: JSON as one of the classes of `requests`, or what is wrong with it."""

from __future__ import annotations

import re
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from edgespec.server.refusals import SHOWN, RequestError, shown
from edgespec.server.requests import TextRequest

_TRIED = re.compile(r"str$|constrained-|list\[|literal\[")

Body = TypeVar("Body", bound=TextRequest)


async def read(request: Request, kind: type[Body], limit: int) -> Body:
    """What a client has sent.

    Args:
        request: whose body is read.
        kind: what it should be.
        limit: bytes that it may have.

    Raises:
        ClientDisconnect: if the client goes meanwhile.
        RequestError: if it is something else.
    """
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A page of another site can post anything else here without asking the browser first.
    if content != "application/json":
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
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        raise _refusal(error) from error


def _refusal(error: ValidationError) -> RequestError:
    """What is wrong with the field that is wrong most deeply."""
    found = error.errors(include_url=False, include_context=False)
    deepest = max(found, key=lambda each: len(each["loc"]))
    if deepest["type"] == "json_invalid":
        return RequestError(400, f"the body is no JSON in UTF-8: {deepest['msg']}", "invalid_json")
    name = _name(deepest["loc"])[:SHOWN]
    if deepest["type"] == "extra_forbidden":
        return RequestError(400, f"{name} is not known here: leave it out", "unknown", name)
    if deepest["type"] == "missing":
        return RequestError(400, f"{name} is missing: give it", "missing", name)
    wanted = [each["msg"] for each in found if _name(each["loc"])[:SHOWN] == name]
    where = name or "the body"
    message = f"{where} is {shown(deepest['input'])}: {' or '.join(dict.fromkeys(wanted))}"
    return RequestError(400, message, "invalid_value", name or None)


def _name(place: tuple[int | str, ...]) -> str:
    """Of a field; where it may be one thing or another, its place also says which was tried."""
    return ".".join(part for part in map(str, place) if not _TRIED.match(part))
