"""Gemma 4's notation of arguments.

It is like JSON, but names are bare, strings stand between two tokens `<|"|>` without any escapes,
and there is no white space. Names are sorted. (Google, function calling with Gemma 4.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgespec.errors import InputError
from edgespec.runtime.text.lark import Spelling, chain_rules, quote
from edgespec.runtime.text.schema.adapting import json_expression
from edgespec.runtime.text.schema.numbers import format_decimal, is_number
from edgespec.runtime.text.schema.reading import length_pattern, lookup
from edgespec.runtime.text.tools.codec import Codec, Schema
from edgespec.runtime.text.tools.json_codec import write_json

QUOTE = '<|"|>'
"""Begins and ends a string; one token."""

_SCALARS = ("integer", "number", "boolean", "null")
_KEPT = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_UNHELD = {
    "allOf", "not", "if", "pattern", "patternProperties", "propertyNames", "minProperties",
    "maxProperties", "prefixItems", "uniqueItems", "contains", "dependentRequired",
    "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef",
    "$recursiveRef",
}  # fmt: skip
_KNOWN = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength"),
    **dict.fromkeys(_SCALARS, _KEPT),
}


class GemmaCodec(Codec):
    """An object in Gemma's notation."""

    marks = QUOTE

    def rules(self, name: str, schema: Schema, spelling: Spelling) -> list[str]:
        """See `Codec`.

        Raises:
            InputError: if the schema has what this notation is not known for.
        """
        return _Rules(name, schema, spelling).lines

    def reader(self, schema: Schema) -> GemmaReader:
        """See `Codec`."""
        return GemmaReader()

    def write(self, arguments: Mapping[str, Any], schema: Schema | None = None) -> str:
        """See `Codec`. Names are sorted, whatever their order was."""
        return _written(arguments)


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        members = [f"{name}:{_written(each)}" for name, each in sorted(value.items())]
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return f"{QUOTE}{value}{QUOTE}" if isinstance(value, str) else write_json(value)


class _Rules:
    """Lark rules for the arguments of one function.

    Args:
        name: name of the first rule; further ones begin with it.
        schema: JSON schema of the arguments.
        spelling: how the grammar writes marks.

    Attributes:
        lines: the rules.
    """

    def __init__(self, name: str, schema: Mapping[str, Any], spelling: Spelling) -> None:
        self._name = name
        self._schema = schema
        self._quote = spelling.marks(QUOTE)
        self._references: dict[str, str] = {}
        self.lines: list[str] = []
        self._rule(name, schema if "properties" in schema else {**schema, "properties": {}})

    def _rule(self, name: str, schema: Any) -> str:
        place = len(self.lines)
        self.lines.append("")
        self.lines[place] = f"{name}: {self._expression(schema)}"
        return name

    def _new(self, schema: Any) -> str:
        return self._rule(f"{self._name}_{len(self.lines)}", schema)

    def _expression(self, schema: Any) -> str:
        if schema is True or schema == {}:
            schema = {"type": ["string", *_SCALARS]}
        if not isinstance(schema, Mapping):
            raise _unknown(schema)
        kind = schema.get("type", "object" if "properties" in schema else None)
        if "$ref" in schema:
            found = self._reference(schema["$ref"])
        elif "anyOf" in schema or "oneOf" in schema:
            found = self._any_of(schema.get("anyOf") or schema["oneOf"])
        elif "const" in schema or "enum" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            found = " | ".join([self._value(value) for value in values])
        elif isinstance(kind, list):
            found = self._any_of([{**schema, "type": each} for each in kind])
        else:
            found = self._typed(kind, schema)
        return found

    def _typed(self, kind: Any, schema: Mapping[str, Any]) -> str:
        known = _KNOWN.get(kind) if isinstance(kind, str) else None
        for key in schema:
            if known is None or key in _UNHELD:
                raise _unknown({key: schema[key]})
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return self._array(schema)
        if kind == "string":
            return f"{self._quote} /(.|\\n){length_pattern(schema)}/ {self._quote}"
        kept = {key: schema[key] for key in ("type", *_KEPT) if key in schema}
        return json_expression(kept)

    def _any_of(self, schemas: Sequence[Any]) -> str:
        return " | ".join([self._new(schema) for schema in schemas])

    def _reference(self, reference: str) -> str:
        if reference not in self._references:
            found = lookup(reference, self._schema)
            if found is None:
                raise _unknown({"$ref": reference})
            self._references[reference] = name = f"{self._name}_{len(self.lines)}"
            self._rule(name, found)
        return self._references[reference]

    def _value(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self._quote} {quote(value)} {self._quote}"
        return (
            quote(format_decimal(value)) if is_number(value) else json_expression({"const": value})
        )

    def _object(self, schema: Mapping[str, Any]) -> str:
        """Members in the order of their names."""
        if isinstance(schema.get("additionalProperties"), Mapping):
            raise _unknown({"additionalProperties": schema["additionalProperties"]})
        required = schema.get("required", ())
        members = [
            (f"{quote(f'{key}:')} {self._new(value)}", key in required)
            for key, value in sorted(schema.get("properties", {}).items())
        ]
        first, rules = chain_rules(f"{self._name}_{len(self.lines)}", members, '","')
        self.lines += rules
        return f'"{{" {first} "}}"'

    def _array(self, schema: Mapping[str, Any]) -> str:
        item = self._new(schema.get("items", True))
        least = schema.get("minItems", 0)
        most = schema.get("maxItems")
        if most == 0:
            return '"[]"'
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return f'"[" {item} {more} "]"' + (' | "[]"' if not least else "")


class GemmaReader:
    """Reads arguments and gives them as JSON, in one piece when they are complete.

    Attributes:
        complete: whether they are.
    """

    def __init__(self) -> None:
        self.complete = False
        self._read = ""

    def push(self, text: str) -> tuple[str, str]:
        """Returns the JSON of the arguments, if they are complete, and the rest of a text."""
        self._read += text
        try:
            value, rest = _value(self._read)
        except _IncompleteError:
            return "", ""
        self.complete = True
        return write_json(value), rest


class _IncompleteError(Exception):
    """The text ends inside a value."""


def _value(text: str) -> tuple[Any, str]:
    """Reads a value at the beginning of a text; returns it and the rest."""
    if text.startswith(QUOTE):
        content, ended, rest = text.removeprefix(QUOTE).partition(QUOTE)
        if not ended:
            raise _IncompleteError
        return content, rest
    if text.startswith("{"):
        members, rest = _items(text[1:], "}", _member)
        return dict(members), rest
    if text.startswith("["):
        return _items(text[1:], "]", _value)
    end = next((place for place, letter in enumerate(text) if letter in ",]}"), None)
    if end is None:
        raise _IncompleteError
    return json.loads(text[:end]), text[end:]


def _member(text: str) -> tuple[tuple[str, Any], str]:
    name, colon, rest = text.partition(":")
    if not colon:
        raise _IncompleteError
    value, rest = _value(rest)
    return (name, value), rest


def _items(text: str, end: str, read: Callable[[str], tuple[Any, str]]) -> tuple[list[Any], str]:
    items = []
    while not text.startswith(end):
        item, text = read(text.removeprefix(","))
        items.append(item)
        if not text:
            raise _IncompleteError
    return items, text[1:]


def _unknown(schema: Any) -> InputError:
    return InputError(
        f"has {json.dumps(schema)[:60]}, which calls of this model cannot be held to: describe the "
        "parameter without it"
    )
