"""The input of a batch: one request a line."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json

from edgespec.errors import InputError


@dataclass(frozen=True)
class Line:
    """A line of the input that is not empty.

    Attributes:
        number: number of the line, from 1.
        data: the line's bytes, not checked.
        custom_id: the client's name for the request; None if it cannot be read.
    """

    number: int
    data: bytes
    custom_id: str | None


@dataclass(frozen=True)
class Requests:
    """The input of a batch.

    Attributes:
        lines: the lines that are not empty, in order.
        digest: SHA-256 of the whole input.
        time: time of the file's last change, in whole seconds since 1970.
    """

    lines: tuple[Line, ...]
    digest: str
    time: int


def read_requests(path: Path) -> Requests:
    """Reads the input of a batch; what is wrong within a line is found when it is answered.

    Raises:
        InputError: if there is no request, or two have the same custom_id.
        OSError: if the file cannot be read.
    """
    data = path.read_bytes()
    # Not splitlines, which would also split at characters that JSON strings may contain.
    pieces = enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
    lines = tuple(Line(number, text, _custom_id(text)) for number, text in pieces if text.strip())
    if not lines:
        raise InputError(f"{path} has no requests: give a JSON object on each line")
    _require_distinct(path, lines)
    return Requests(lines, hashlib.sha256(data).hexdigest(), int(path.stat().st_mtime))


def _custom_id(data: bytes) -> str | None:
    try:
        value = from_json(data)
    except ValueError:
        return None
    found = value.get("custom_id") if isinstance(value, dict) else None
    return found if isinstance(found, str) and found else None


def _require_distinct(path: Path, lines: tuple[Line, ...]) -> None:
    seen: dict[str, int] = {}
    for line in lines:
        if line.custom_id is None:
            continue
        first = seen.setdefault(line.custom_id, line.number)
        if first != line.number:
            raise InputError(
                f"{path}: lines {first} and {line.number} have the same custom_id "
                f"{line.custom_id!r:.80}: give each request its own"
            )
