"""JSON schemas in the words that llguidance can hold a text to.

JSON Schema (2020-12) has keywords that say nothing, formats that are annotations, and `oneOf`,
which is `anyOf` where no value can be of two alternatives. llguidance refuses all of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

from edgespec.runtime.sampling.schemas import LISTED, NAMED, SINGLE

_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
            "uri"}  # fmt: skip
_ANNOTATIONS = {"title", "description", "default", "examples", "$comment"}
_UNHELD = {
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames",
    "uniqueItems", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems",
    "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
}  # fmt: skip
_UNHELD_PATTERN = re.compile(r"\(\?(<?[=!])|\\[1-9]")  # look-around and back-references
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
          list: "array", dict: "object"}  # fmt: skip
_ALTERNATIVES = 64  # of a `oneOf` that is looked into
_DEPTH = 4  # of objects and references that are looked into to tell alternatives apart


def holdable(schema: Any, loosely: bool = False) -> Any:
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
        if loosely or _all_apart(alternatives, lambda each: _resolved(each, schema)):
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
    return {"type": kind} if isinstance(kind, str) and kind in _TYPES.values() else {}


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


def _resolved(schema: Any, root: Any) -> Any:
    """Returns what a schema refers to, within the root, or itself."""
    for _ in range(_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        schema = root
        for part in reference[2:].split("/"):
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    return schema


def _all_apart(schemas: list[Any], resolved: Callable[[Any], Any]) -> bool:
    pairs = combinations(schemas, 2)
    return len(schemas) <= _ALTERNATIVES and all(
        _apart(one, other, resolved, _DEPTH) for one, other in pairs
    )


def _apart(one: Any, other: Any, resolved: Callable[[Any], Any], depth: int) -> bool:
    """Whether it is certain that no value is valid for two schemas.

    An integer counts as no number here: who offers both means any number.
    """
    one = resolved(one)
    other = resolved(other)
    if not isinstance(one, Mapping) or not isinstance(other, Mapping) or not depth:
        return False
    values = _values(one), _values(other)
    if None not in values:
        return not set(values[0] or ()) & set(values[1] or ())
    kinds = _kinds(one), _kinds(other)
    if all(kinds) and not kinds[0] & kinds[1]:
        return True
    members = [each.get("properties", {}) for each in (one, other)]
    needed = [each.get("required", []) for each in (one, other)]
    if kinds != ({"object"}, {"object"}) or not all(isinstance(each, Mapping) for each in members):
        return False
    if not all(isinstance(each, list) for each in needed):
        return False
    closed = [each.get("additionalProperties") is False for each in (one, other)]
    return any(
        key in members[0]
        and key in members[1]
        and _apart(members[0][key], members[1][key], resolved, depth - 1)
        for key in needed[0]
        if key in needed[1]
    ) or any(
        closed[each]
        and "patternProperties" not in (one, other)[each]
        and any(key not in members[each] for key in needed[1 - each])
        for each in (0, 1)
    )


def _values(schema: Mapping[str, Any]) -> list[str] | None:
    """Returns the values that a schema names, as JSON; None if it does not."""
    if "const" in schema:
        return [json.dumps(schema["const"], sort_keys=True)]
    named = schema.get("enum")
    return [json.dumps(each, sort_keys=True) for each in named] if isinstance(named, list) else None


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Returns the types of the values of a schema; empty if they are not known."""
    values = _values(schema)
    if values is not None:
        return {_TYPES[type(json.loads(each))] for each in values}
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    named = {each for each in kinds if isinstance(each, str)}
    return named if len(named) == len(kinds) else set()
