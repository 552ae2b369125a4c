"""White space in JSON that a grammar allows.

Models write JSON as they learned it, mostly as Python's json module does. Without the blanks they
answer worse (benchmarks/extraction.py); where any amount may come, small models write it for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SPACINGS: Mapping[str, Mapping[str, Any]] = {
    "json": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "compact": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    "loose": {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,64}"},
}
"""Options of llguidance: `json` as Python's json module writes it, none, or any up to a bound."""

OPTIONS = "x-guidance"
"""Keyword under which a schema has options for llguidance."""

_ANY_SPACE = ("whitespace_flexible", "whitespace_pattern")


def add_spacing(schema: Mapping[str, Any], spacing: str = "json") -> dict[str, Any]:
    """Returns a schema with options for llguidance; those that it has already win.

    Args:
        schema: JSON schema.
        spacing: name of one of `SPACINGS`.
    """
    given = schema.get(OPTIONS, {})
    if not isinstance(given, Mapping):  # which llguidance refuses
        return dict(schema)
    # Who says where white space may come means it around llguidance's own separators.
    usual = {"whitespace_flexible": False} if given.keys() & {*_ANY_SPACE} else SPACINGS[spacing]
    return {**schema, OPTIONS: {**usual, **given}}
