"""Arguments of calls that look like Python's, one after the other.

    get_weather(city="Rome", days=2)

OLMo 3 writes all values as JSON. LFM2 writes strings in either kind of quotes, and `True`, `False`
and `None`. Its lists and dicts are held to JSON, as which LFM2.5's chat template writes dicts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edgespec.errors import InputError, reason
from edgespec.runtime.text.lark import Spelling, chain_rules, quote
from edgespec.runtime.text.schema.adapting import json_expression
from edgespec.runtime.text.schema.grammar import schema_rules
from edgespec.runtime.text.schema.numbers import format_decimal, is_number
from edgespec.runtime.text.schema.reading import (
    is_plain,
    length_pattern,
    named_values,
    resolve,
    with_definitions,
)
from edgespec.runtime.text.tools.codec import Codec, MemberReader, Schema
from edgespec.runtime.text.tools.json_codec import JsonReader, write_json

_LITERALS = {"True": "true", "False": "false", "None": "null"}
_STRINGS = {mark: re.compile(rf"{mark}(?:[^{mark}\\]|\\.)*{mark}", re.DOTALL) for mark in "'\""}
_SCALAR = re.compile(r"[^,)]*(?=[,)])")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class KeywordCodec(Codec):
    """Keywords with values as JSON, in the order of the schema."""

    def rules(self, name: str, schema: Schema, spelling: Spelling) -> list[str]:
        """See `Codec`.

        Raises:
            InputError: if the name of a parameter cannot be told from its value.
        """
        members = []
        rules = []
        for number, (key, given) in enumerate(schema.get("properties", {}).items()):
            if "=" in key:
                raise InputError(
                    f"a tool has the parameter {reason(repr(key), 60)}, but this model writes = "
                    "behind names: rename it"
                )
            rule = f"{name}_value_{number}"
            rules += self._value_rules(rule, given, schema)
            members.append((f"{quote(f'{key}=')} {rule}", key in schema.get("required", ())))
        first, chain = chain_rules(name, members, '", "')
        return [f"{name}: {first}", *chain, *rules]

    def reader(self, schema: Schema) -> KeywordReader:
        """See `Codec`."""
        return KeywordReader()

    def write(self, arguments: Mapping[str, Any], schema: Schema | None = None) -> str:
        """See `Codec`."""
        return ", ".join([f"{name}={self._value(each)}" for name, each in arguments.items()])

    def _value_rules(self, name: str, schema: Any, root: Schema) -> list[str]:
        return schema_rules(name, with_definitions(schema, root))

    def _value(self, value: Any) -> str:
        return write_json(value)


class PythonCodec(KeywordCodec):
    """Keywords with values as Python."""

    def _value_rules(self, name: str, schema: Any, root: Schema) -> list[str]:
        return [f"{name}: {' | '.join(_alternatives(schema, root))}"]

    def _value(self, value: Any) -> str:
        return str(value) if value is None or isinstance(value, bool) else write_json(value)


def _alternatives(schema: Any, root: Schema, inner: bool = False) -> list[str]:
    """Returns what may stand in a rule for a value in Python; within a union if `inner`."""
    found = resolve(schema, root)
    if found is True or found == {}:
        found = {"type": ["string", "number", "boolean", "null", "array", "object"]}
    union = [] if inner else _union(found)
    if union:
        return [way for each in union for way in _alternatives(each, root, inner=True)]
    kind = found.get("type") if isinstance(found, Mapping) else None
    if values := named_values(found):
        ways = [_literal(value) for value in values]
    elif kind == "boolean":
        ways = ['"True"', '"False"']
    elif kind == "null":
        ways = ['"None"']
    elif is_plain(found):
        # Each character is a plain one or an escape. A string may have several lines.
        ways = [rf"/{q}([^{q}\\]|\\[nrt\\'\"]){length_pattern(found)}{q}/" for q in ("'", '"')]
    else:
        ways = [json_expression(with_definitions(found, root))]
    return ways


def _union(schema: Any) -> list[Any]:
    """Returns the schemas of which values may follow any one; none if that is the schema alone."""
    if not isinstance(schema, Mapping) or named_values(schema):
        return []
    kind = schema.get("type")
    if isinstance(kind, list):
        return [{**schema, "type": each} for each in kind]
    return [] if kind else list(schema.get("anyOf") or schema.get("oneOf") or ())


def _literal(value: Any) -> str:
    """Returns what stands in a rule for a certain value in Python."""
    if isinstance(value, str):
        inner = write_json(value)[1:-1]
        single = inner.replace('\\"', '"').replace("'", "\\'")
        return f"""{quote(f'"{inner}"')} | {quote(f"'{single}'")}"""
    if value is None or isinstance(value, bool):
        return quote(str(value))
    return quote(format_decimal(value)) if is_number(value) else json_expression({"const": value})


class KeywordReader(MemberReader):
    """Reads arguments up to a closing parenthesis, with values as JSON or Python."""

    def _member(self, text: str) -> tuple[str, str, str] | None:
        if text.startswith(")"):
            return None
        name, equals, written = text.removeprefix(", ").partition("=")
        found = _read_value(written) if equals and written else None
        if found is None or not found[1]:  # what follows tells that a value is whole
            return None
        return name, *found

    def _ends(self, text: str) -> bool:
        return text.startswith(")")


def _read_value(text: str) -> tuple[str, str] | None:
    """Returns the value that a text begins with, as JSON, and the rest; None if it is cut."""
    if text[0] in "{[":
        reader = JsonReader()
        found = reader.push(text)
        return found if reader.complete else None
    string = text[0] in _STRINGS
    value = (_STRINGS[text[0]] if string else _SCALAR).match(text)
    if value is None:
        return None
    written = value[0]
    read = _string(written[1:-1]) if string else _LITERALS.get(written, written)
    return read, text[value.end() :]


def _string(inner: str) -> str:
    """Returns a string that is written in Python or JSON, without its quotes, as JSON."""

    def character(escape: re.Match[str]) -> str:
        found = escape[1]
        return chr(int(found[1:], 16)) if len(found) > 1 else _ESCAPES.get(found, found)

    text = _ESCAPE.sub(character, inner)
    # Characters beyond the first 65536 are two escapes in JSON.
    return write_json(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
