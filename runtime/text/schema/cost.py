"""Whether a schema is certain to cost next to nothing as a grammar."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from edgespec.runtime.text.schema.spacing import OPTIONS

_JOINED_PATTERNS = 4  # that one string may have to match at once in a grammar that is small
_COUNTED = re.compile(r"(?:\{|~|\.\.|,)\s*(\d+)")  # {2,3} and ~2..3
_MOST = {
    "minItems": 100, "maxItems": 100, "minProperties": 100, "maxProperties": 100,
    "minLength": 10_000, "maxLength": 10_000,
}  # fmt: skip


def is_small_schema(source: str) -> bool:
    """Whether a JSON schema, given as text, is certain to be compiled at next to no cost."""
    if len(source) > 64_000 or OPTIONS in source:  # which has regular expressions
        return False
    try:
        parts = list(_parts(json.loads(source)))
    except (ValueError, RecursionError):
        return False
    keys = Counter(key for _, key, _ in parts)
    multiples = 1.0
    for depth, key, value in parts:
        if key == "multipleOf" and isinstance(value, int | float) and value > 0:
            multiples *= min(max(value, 1 / value), 1e9)
        if depth > 32 or not _is_small_value(key, value):
            return False
    merged = keys["allOf"] > 0 and keys["anyOf"] + keys["oneOf"] > 2
    if keys["pattern"] + keys["format"] > _JOINED_PATTERNS:  # doubles with each that joins others
        merged = merged or keys["allOf"] > 0 or any(_joins(value) for _, _, value in parts)
    return len(parts) <= 4000 and keys["$ref"] <= 64 and not merged and multiples <= 1000


def _joins(value: Any) -> bool:
    """Whether a schema asks for more beside what it refers to or lists."""
    others = {"anyOf", "oneOf", "$ref", "title", "description", "default", "$defs", "definitions"}
    return isinstance(value, dict) and bool(
        value.keys() & {"anyOf", "oneOf", "$ref"} and value.keys() - others
    )


def _is_small_value(key: str, value: Any) -> bool:
    if isinstance(value, int | float):
        return value <= _MOST.get(key, math.inf)
    if key == "pattern" and isinstance(value, str):
        return is_small_text(value)
    if key == "patternProperties" and isinstance(value, dict):
        return all(map(is_small_text, value))
    return True


def _parts(schema: Any) -> Iterator[tuple[int, str, Any]]:
    """Yields all values within a schema with their depth and name."""
    left = [(0, "", schema)]
    while left:
        depth, key, value = left.pop()
        yield depth, key, value
        if isinstance(value, dict):
            left += [(depth + 1, name, each) for name, each in value.items()]
        elif isinstance(value, list):
            left += [(depth + 1, "", each) for each in value]


def is_small_text(source: str) -> bool:
    """Whether a regular expression or a grammar in Lark's notation is small."""
    repeated = 1
    for count in _COUNTED.findall(source):
        repeated *= max(int(count[:9]), 1)
    return (
        len(source) <= 8000
        and source.count("\n") <= 100
        and repeated <= 2000
        and not any(sign in source for sign in ("%", "&", "~/", "~ /"))
    )
