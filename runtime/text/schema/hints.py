"""JSON schemas of Python's type hints."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from edgespec.errors import InputError, reason

_SIMPLE = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
}  # fmt: skip


def hint_schema(hint: Any, where: str) -> dict[str, Any]:
    """Returns the JSON schema of a type hint.

    Args:
        hint: the hint, resolved.
        where: where it is, as errors say it.

    Raises:
        InputError: if JSON has no such type.
    """
    origin = get_origin(hint)
    arguments = get_args(hint)
    found: dict[str, Any] | None = None
    if hint is Any:
        found = {}
    elif isinstance(hint, type) and hint in _SIMPLE:
        found = {"type": _SIMPLE[hint]}
    elif origin is typing.Annotated:
        note = next((each for each in arguments[1:] if isinstance(each, str)), None)
        found = {**hint_schema(arguments[0], where), **({"description": note} if note else {})}
    elif origin is Literal:
        found = {"enum": list(arguments)}
    elif origin in (Union, types.UnionType):
        found = _union([hint_schema(each, where) for each in arguments])
    elif isinstance(origin or hint, type):
        found = _class_schema(origin or hint, arguments, where)
    if found is None:
        raise InputError(
            f"{where} has the type {reason(repr(hint), 60)}, which JSON does not have: use str, "
            "int, float, bool, lists, dicts, Literal or a dataclass"
        )
    return found


def _class_schema(kind: type, arguments: Sequence[Any], where: str) -> dict[str, Any] | None:
    """Returns the JSON schema of a class with its type arguments; None if it has none."""
    found: dict[str, Any] | None = None
    if issubclass(kind, enum.Enum):
        found = {"enum": [each.value for each in kind]}
    elif is_dataclass(kind):
        optional = {
            each.name
            for each in fields(kind)
            if each.default is not MISSING or each.default_factory is not MISSING
        }
        found = _members(kind, optional, where)
    elif typing.is_typeddict(kind):
        found = _members(kind, getattr(kind, "__optional_keys__", frozenset()), where)
    elif issubclass(kind, Mapping):
        value = hint_schema(arguments[1], where) if len(arguments) == 2 else True
        found = {"type": "object", "additionalProperties": value}
    elif issubclass(kind, Sequence | Set) and kind is not bytes:
        items = [hint_schema(each, where) for each in arguments if each is not Ellipsis]
        if issubclass(kind, tuple) and items and Ellipsis not in arguments:
            size = {"minItems": len(items), "maxItems": len(items)}
            found = {"type": "array", "prefixItems": items, **size}
        else:
            found = {"type": "array", "items": items[0] if items else {}}
    return found


def _members(kind: type, optional: Iterable[str], where: str) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        "type": "object",
        "properties": {key: hint_schema(hint, where) for key, hint in hints.items()},
        "required": [key for key in hints if key not in optional],
        "additionalProperties": False,
    }


def _union(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if all(set(schema) == {"type"} for schema in schemas):
        return {"type": [schema["type"] for schema in schemas]}
    return {"anyOf": list(schemas)}
