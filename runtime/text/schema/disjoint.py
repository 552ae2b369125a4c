"""Alternatives of a JSON schema of which no value can be two: `oneOf` is `anyOf` there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from edgespec.runtime.text.schema.reading import lookup

TYPES = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
    list: "array", dict: "object",
}  # fmt: skip
"""What JSON schemas call the types of JSON values."""

_MOST = 64  # alternatives that are looked into
_DEPTH = 4  # of objects and references that are looked into to tell alternatives apart


def are_disjoint(schemas: Sequence[Any], root: Any) -> bool:
    """Whether it is certain that no value is valid for two of some schemas.

    An integer counts as no number here: who offers both means any number.

    Args:
        schemas: the schemas, as JSON values.
        root: the whole schema, to which they may refer.
    """
    pairs = combinations(schemas, 2)
    return len(schemas) <= _MOST and all(_apart(one, other, root, _DEPTH) for one, other in pairs)


def _resolved(schema: Any, root: Any) -> Any:
    """Returns what a schema refers to, whatever else it says, or itself."""
    for _ in range(_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        schema = lookup(reference, root)
    return schema


def _apart(one: Any, other: Any, root: Any, depth: int) -> bool:
    one = _resolved(one, root)
    other = _resolved(other, root)
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
        and _apart(members[0][key], members[1][key], root, depth - 1)
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
        return {TYPES[type(json.loads(each))] for each in values}
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    named = {each for each in kinds if isinstance(each, str)}
    return named if len(named) == len(kinds) else set()
