"""Whether values fit a JSON schema, for what a text cannot be held to while it is made.

Patterns are not looked at: some take for ever to match, and they come from strangers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from edgespec.runtime.text.schema.reading import resolve

_STEPS = 10_000  # parts of a value and a schema that are compared
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
    steps = iter(range(_STEPS))
    try:
        return next(_misfits(value, schema, "", (schema, steps)), None)
    except (AttributeError, TypeError, ValueError, RecursionError, _TooLargeError):
        return None


class _TooLargeError(Exception):
    pass


_Root = tuple[Mapping[str, Any], Iterator[int]]  # the whole schema, and the steps that are left


def _misfits(value: Any, schema: Any, place: str, root: _Root) -> Iterator[str]:
    if next(root[1], None) is None:
        raise _TooLargeError
    if isinstance(schema, bool):
        if not schema:
            yield f"{place or 'it'} may not be there"
        return

    def inner(part: Any, of: Any = value, name: object = "") -> Iterator[str]:
        return _misfits(of, part, f"{place}.{name}".strip(".") if name != "" else place, root)

    def fits(part: Any, of: Any = value) -> bool:
        return next(inner(part, of), None) is None

    reference = {"$ref": schema.get("$ref")}
    if (found := resolve(reference, root[0])) is not reference:
        yield from inner(found)
    for key, holds in (*_of_value(value, schema, fits), *_of_container(value, schema, fits)):
        if not holds:
            yield f"{key} of {place or 'all'}"
    for part in schema.get("allOf", ()):
        yield from inner(part)
    if "if" in schema:
        yield from inner(schema.get("then" if fits(schema["if"]) else "else", True))
    if isinstance(value, dict):
        named = schema.get("properties", {})
        rest = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        for name, each in value.items():
            yield from inner(named.get(name, rest), each, name)
            yield from inner(schema.get("dependentSchemas", {}).get(name, True))
    elif isinstance(value, list):
        first = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        for number, each in enumerate(value):
            yield from inner(first[number] if number < len(first) else rest, each, number)


def _of_value(
    value: Any, schema: Mapping[str, Any], fits: Callable[..., bool]
) -> Iterator[tuple[str, bool]]:
    """Yields keywords that say something about the value as a whole, and whether they hold."""
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        yield "type", any(_is(value, kind) for kind in kinds)
    if "const" in schema:
        yield "const", _same(value, schema["const"])
    if "enum" in schema:
        yield "enum", any(_same(value, each) for each in schema["enum"])
    if "not" in schema:
        yield "not", not fits(schema["not"])
    if "anyOf" in schema:
        yield "anyOf", any(fits(each) for each in schema["anyOf"])
    if "oneOf" in schema:
        fitting = (each for each in schema["oneOf"] if fits(each))
        yield "oneOf", len(list(islice(fitting, 2))) == 1
    for key, (kind, holds) in _SIZES.items():
        if key in schema and isinstance(value, kind):
            yield key, holds(len(value), schema[key])
    for key, holds in _LIMITS.items():
        if key in schema and _is(value, "number"):
            yield key, holds(value, schema[key])


def _of_container(
    value: Any, schema: Mapping[str, Any], fits: Callable[..., bool]
) -> Iterator[tuple[str, bool]]:
    """Yields keywords that say something about a list or an object, and whether they hold."""
    if isinstance(value, list):
        if schema.get("uniqueItems"):
            yield "uniqueItems", len({_written(each) for each in value}) == len(value)
        if "contains" in schema:
            count = sum(fits(schema["contains"], each) for each in value)
            least = schema.get("minContains", 1)
            most = schema.get("maxContains", len(value))
            yield "contains", least <= count <= most
    if isinstance(value, dict):
        yield "required", all(each in value for each in schema.get("required", ()))
        names = schema.get("propertyNames", True)
        yield "propertyNames", all(fits(names, each) for each in value)
        depend = schema.get("dependentRequired", {}).items()
        yield (
            "dependentRequired",
            all(each in value for name, others in depend if name in value for each in others),
        )


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
