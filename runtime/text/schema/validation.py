"""Whether values fit a JSON schema, for what a text cannot be held to while it is made.

Patterns are not looked at: some take for ever to match, and they come from strangers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from edgespec.runtime.text.schema.reading import resolve

_MOST_STEPS = 10_000  # parts of a value and a schema that are compared
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "null": (type(None),), "array": (list,), "object": (dict,),
}  # fmt: skip
_LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
}
_SIZES: dict[str, tuple[Any, Callable[[Any, Any], bool]]] = {
    f"{end}{name}": (kind, _LIMITS[f"{end}imum"])
    for end in ("min", "max")
    for name, kind in (("Length", str), ("Items", list), ("Properties", dict))
}


def misfit(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Returns what does not fit, by its place and the keyword of the schema; None if all does.

    What is no schema, and what is too large to look at, fits.

    Args:
        value: JSON value.
        schema: JSON schema (2020-12); only references within it are followed.
    """
    try:
        return next(_Comparison(schema).misfits(value, schema), None)
    except (AttributeError, TypeError, ValueError, RecursionError, _TooLargeError):
        return None


class _TooLargeError(Exception):
    pass


class _Comparison:
    """Compares values with the parts of one schema, to which these may refer."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._steps = 0

    def misfits(self, value: Any, schema: Any, place: str = "") -> Iterator[str]:
        """Yields what does not fit, in a value at some place."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise _TooLargeError
        if isinstance(schema, bool):
            if not schema:
                yield f"{place or 'it'} may not be there"
            return
        reference = {"$ref": schema.get("$ref")}
        if (found := resolve(reference, self._root)) is not reference:
            yield from self.misfits(value, found, place)
        for key, holds in (*self._of_value(value, schema), *self._of_container(value, schema)):
            if not holds:
                yield f"{key} of {place or 'all'}"
        for part in schema.get("allOf", ()):
            yield from self.misfits(value, part, place)
        if "if" in schema:
            then = "then" if self._fits(value, schema["if"]) else "else"
            yield from self.misfits(value, schema.get(then, True), place)
        yield from self._in_container(value, schema, place)

    def _fits(self, value: Any, schema: Any) -> bool:
        return next(self.misfits(value, schema), None) is None

    def _of_value(self, value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
        """Yields keywords that say something about a value as a whole, and whether they hold."""
        if "type" in schema:
            kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            yield "type", any(_is(value, kind) for kind in kinds)
        if "const" in schema:
            yield "const", _same(value, schema["const"])
        if "enum" in schema:
            yield "enum", any(_same(value, each) for each in schema["enum"])
        if "not" in schema:
            yield "not", not self._fits(value, schema["not"])
        if "anyOf" in schema:
            yield "anyOf", any(self._fits(value, each) for each in schema["anyOf"])
        if "oneOf" in schema:
            fitting = (each for each in schema["oneOf"] if self._fits(value, each))
            yield "oneOf", len(list(islice(fitting, 2))) == 1
        for key, (kind, holds) in _SIZES.items():
            if key in schema and isinstance(value, kind):
                yield key, holds(len(value), schema[key])
        for key, holds in _LIMITS.items():
            if key in schema and _is(value, "number"):
                yield key, holds(value, schema[key])

    def _of_container(self, value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
        """Yields keywords that say something about a list or object, and whether they hold."""
        if isinstance(value, list):
            if schema.get("uniqueItems"):
                yield "uniqueItems", len({_written(each) for each in value}) == len(value)
            if "contains" in schema:
                count = sum(self._fits(each, schema["contains"]) for each in value)
                least = schema.get("minContains", 1)
                most = schema.get("maxContains", len(value))
                yield "contains", least <= count <= most
        if isinstance(value, dict):
            yield "required", all(each in value for each in schema.get("required", ()))
            names = schema.get("propertyNames", True)
            yield "propertyNames", all(self._fits(each, names) for each in value)
            depend = schema.get("dependentRequired", {}).items()
            yield (
                "dependentRequired",
                all(each in value for name, others in depend if name in value for each in others),
            )

    def _in_container(self, value: Any, schema: Mapping[str, Any], place: str) -> Iterator[str]:
        """Yields what does not fit within a list or an object."""
        if isinstance(value, dict):
            named = schema.get("properties", {})
            free = "patternProperties" in schema
            rest = True if free else schema.get("additionalProperties", True)
            for name, each in value.items():
                inner = f"{place}.{name}".strip(".") if name else place
                yield from self.misfits(each, named.get(name, rest), inner)
                dependent = schema.get("dependentSchemas", {}).get(name, True)
                yield from self.misfits(value, dependent, place)
        elif isinstance(value, list):
            first = schema.get("prefixItems", [])
            rest = schema.get("items", True)
            for number, each in enumerate(value):
                part = first[number] if number < len(first) else rest
                yield from self.misfits(each, part, f"{place}.{number}".strip("."))


def _is(value: Any, kind: str) -> bool:
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    if kind not in _TYPES:
        return True
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _same(one: Any, other: Any) -> bool:
    return _written(one) == _written(other)


def _written(value: Any) -> str:
    """Returns a value as JSON, in which 1.0 is 1."""
    return json.dumps(json.loads(json.dumps(value), parse_float=_number), sort_keys=True)


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number
