"""JSON schemas in the words that llguidance can hold a text to.

JSON Schema (2020-12) has keywords that say nothing, formats that are annotations, and `oneOf`,
which is `anyOf` where no value can be of two alternatives. llguidance refuses all of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from edgespec.runtime.text.schema.disjoint import TYPES, are_disjoint
from edgespec.runtime.text.schema.reading import LISTED, NAMED, SINGLE

_FORMATS = {
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
}  # fmt: skip
_ANNOTATIONS = {"title", "description", "default", "examples", "$comment"}
_UNHELD = {
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames",
    "uniqueItems", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems",
    "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
}  # fmt: skip
_UNHELD_PATTERN = re.compile(r"\(\?(<?[=!])|\\[1-9]")  # look-around and back-references


def normalize(schema: Any, loosely: bool = False) -> Any:
    """Returns a schema without what says nothing, and with `anyOf` for `oneOf` where that is equal.

    Args:
        schema: the schema, as JSON values.
        loosely: whether to leave out what cannot be held too, so that it allows more.
    """

    def converted(part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        found: dict[str, Any] = {}
        for key, value in part.items():
            if _says_nothing(key, value, part) or (loosely and _is_unheld(key, value)):
                continue
            if key in NAMED and isinstance(value, Mapping):
                found[key] = {
                    name: converted(each)
                    for name, each in value.items()
                    if not (loosely and key == "patternProperties" and _UNHELD_PATTERN.search(name))
                }
            elif key in (*LISTED, *SINGLE) and isinstance(value, list):
                found[key] = [converted(each) for each in value]
            else:
                found[key] = converted(value) if key in SINGLE else value
        alternatives = found.get("oneOf")
        if not isinstance(alternatives, list) or "anyOf" in found:
            return found
        if loosely or are_disjoint(alternatives, schema):
            return {"anyOf" if key == "oneOf" else key: each for key, each in found.items()}
        return found

    try:
        return converted(schema)
    except RecursionError:  # it nests too deep to be held anyway
        return schema


def outline(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema of an object that keeps the names of another one's members, and no more."""
    given = schema.get("properties")
    named = given if isinstance(given, Mapping) else {}
    required = schema.get("required")
    return {
        "type": "object",
        "properties": {key: _typed(each) for key, each in named.items()},
        "required": [key for key in required if key in named] if isinstance(required, list) else [],
        **({} if named else {"additionalProperties": True}),
    }


def _typed(schema: Any) -> dict[str, Any]:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return {"type": kind} if isinstance(kind, str) and kind in TYPES.values() else {}


def _says_nothing(key: str, value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a keyword of a schema is an annotation here, or true of all values."""
    if key in ("then", "else", "minContains", "maxContains"):
        return ("contains" if key.endswith("s") else "if") not in schema
    tests: Mapping[str, Callable[[], bool]] = {
        "format": lambda: value not in _FORMATS if isinstance(value, str) else True,
        "$schema": lambda: "json-schema.org" not in str(value),
        "uniqueItems": lambda: value is False or schema.get("maxItems") in (0, 1),
        "propertyNames": lambda: _is_true(value, "string"),
        "contains": lambda: schema.get("minContains") == 0 and "maxContains" not in schema,
        "if": lambda: not {"then", "else"} & schema.keys(),
        "not": lambda: value is False,
        "unevaluatedProperties": lambda: _is_true(value),
        "unevaluatedItems": lambda: _is_true(value),
    }
    if key in ("dependentRequired", "dependentSchemas", "dependencies"):
        return not value
    return key in tests and tests[key]()


def _is_true(schema: Any, kind: str = "") -> bool:
    """Whether a schema allows all values, or all of a type."""
    if not isinstance(schema, Mapping):
        return schema is True
    return schema.get("type", kind) == kind and not schema.keys() - _ANNOTATIONS - {"type"}


def _is_unheld(key: str, value: Any) -> bool:
    pattern = key == "pattern" and isinstance(value, str) and _UNHELD_PATTERN.search(value)
    return key in _UNHELD or bool(pattern)
