"""Conversion of frozen dataclasses to and from JSON, with errors that name the wrong field."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

LEFT_OUT = {"left out": True}
"""Metadata of a field that is not written if it has its default value."""


class RecordError(ValueError):
    """A JSON value that does not fit the dataclass; the message names the field."""


def encode(record: object) -> Any:
    """Converts a dataclass, which may hold others, tuples and dicts, to plain JSON values."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        fields = [(f, getattr(record, f.name)) for f in dataclasses.fields(record)]
        kept = [(f, v) for f, v in fields if f.metadata != LEFT_OUT or v != f.default]
        return {f.name: encode(value) for f, value in kept}
    if isinstance(record, Mapping):
        return {str(key): encode(value) for key, value in record.items()}
    if isinstance(record, (tuple, list)):
        return [encode(value) for value in record]
    return record


def decode(kind: type[T], data: Any, where: str) -> T:
    """Builds the dataclass `kind` from JSON values.

    Unknown fields are errors, since they mean another format.

    Args:
        kind: dataclass to build.
        data: JSON values.
        where: name of the whole value in error messages.

    Raises:
        RecordError: if a value does not fit; it names the field as `where.field`, and what was
            expected and found.
    """
    value: T = _decode(kind, data, where)
    return value


def _decode(kind: Any, data: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, data, where)
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is tuple:
        items = _expect(list, data, where)
        return tuple(_decode(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(items))
    if origin is dict:
        pairs = _expect(dict, data, where)
        return {key: _decode(arguments[1], v, f"{where}.{key}") for key, v in pairs.items()}
    if origin is types.UnionType:  # `X | None`; no other unions are used
        return None if data is None else _decode(arguments[0], data, where)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        with suppress(OverflowError):
            return float(data)
    return _expect(kind, data, where)


def _decode_record(kind: Any, data: Any, where: str) -> Any:
    items = _expect(dict, data, where)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for name in items:
        if name not in fields:
            raise RecordError(f"{where}.{name}: unknown field")
    hints = get_type_hints(kind)
    values = {}
    for name, field in fields.items():
        if name in items:
            values[name] = _decode(hints[name], items[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING:
            raise RecordError(f"{where}.{name}: missing")
    return kind(**values)


def _expect(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise RecordError(f"{where}: expected {kind.__name__}, found {data!r:.80}")
    return data
