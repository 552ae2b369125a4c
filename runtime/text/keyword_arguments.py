"""Arguments of calls that look like Python's, as grammar rules and as JSON.

    get_weather(city="Rome", days=2)

OLMo 3 writes all values as JSON. LFM2 writes strings in either kind of quotes, and `True`, `False`
and `None`. Its lists and dicts are held to JSON, as which LFM2.5's chat template writes dicts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgespec.errors import InputError, reason
from edgespec.runtime.text.json_arguments import JsonArguments, json_value, json_written
from edgespec.runtime.text.schema.grammar import schema_rules
from edgespec.runtime.text.schema.numbers import format_decimal, is_number
from edgespec.runtime.text.schema.reading import (
    is_plain,
    length_pattern,
    named_values,
    resolve,
    with_definitions,
)
from edgespec.runtime.text.spelling import chained, quoted

_LITERALS = {"True": "true", "False": "false", "None": "null"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def keyword_rules(name: str, schema: Mapping[str, Any], python: bool) -> list[str]:
    """Returns Lark rules for the arguments of one function, in the order of its schema.

    Args:
        name: name of the first rule; further ones begin with it.
        schema: JSON schema of the arguments.
        python: whether values are written as Python, not as JSON.

    Raises:
        InputError: if the name of a parameter cannot be told from its value.
    """
    members = []
    rules = []
    for number, (key, given) in enumerate(schema.get("properties", {}).items()):
        if "=" in key:
            raise InputError(
                f"a tool has the parameter {reason(repr(key), 60)}, but this model writes = behind "
                "names: rename it"
            )
        rule = f"{name}_value_{number}"
        if python:
            rules.append(f"{rule}: {' | '.join(_python(given, schema))}")
        else:
            rules += schema_rules(rule, with_definitions(given, schema))
        members.append((f"{quoted(f'{key}=')} {rule}", key in schema.get("required", ())))
    first, chain = chained(name, members, '", "')
    return [f"{name}: {first}", *chain, *rules]


def _python(schema: Any, root: Mapping[str, Any], inner: bool = False) -> list[str]:
    """Returns what may stand in a rule for a value in Python; within a union if `inner`."""
    found = resolve(schema, root)
    if found is True or found == {}:
        found = {"type": ["string", "number", "boolean", "null", "array", "object"]}
    alternatives = [] if inner else _alternatives(found)
    if alternatives:
        return [way for each in alternatives for way in _python(each, root, inner=True)]
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
        ways = [json_value(with_definitions(found, root))]
    return ways


def _alternatives(schema: Any) -> list[Any]:
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
        inner = json.dumps(value, ensure_ascii=False)[1:-1]
        single = inner.replace('\\"', '"').replace("'", "\\'")
        return f"""{quoted(f'"{inner}"')} | {quoted(f"'{single}'")}"""
    if value is None or isinstance(value, bool):
        return quoted(str(value))
    return quoted(format_decimal(value)) if is_number(value) else json_value({"const": value})


def keywords_written(arguments: Mapping[str, Any], python: bool) -> str:
    """Returns arguments as a model writes them."""
    written = []
    for name, value in arguments.items():
        bare = python and (value is None or isinstance(value, bool))
        written.append(f"{name}={value if bare else json_written(value)}")
    return ", ".join(written)


class KeywordArguments:
    """Reads arguments and gives them as JSON, one after the other.

    Attributes:
        complete: whether they have ended, before a closing parenthesis.
    """

    def __init__(self) -> None:
        self.complete = False
        self._unread = ""
        self._begun = False

    def push(self, text: str) -> tuple[str, str]:
        """Returns the JSON of the arguments that are complete, and the rest of a text."""
        self._unread += text
        pieces = []
        while (found := _argument(self._unread)) is not None:
            name, value, self._unread = found
            before = ", " if self._begun else "{"
            pieces.append(f"{before}{json.dumps(name)}: {value}")
            self._begun = True
        self.complete = self._unread.startswith(")")
        if not self.complete:
            return "".join(pieces), ""
        pieces.append("}" if self._begun else "{}")
        return "".join(pieces), self._unread


def _argument(text: str) -> tuple[str, str, str] | None:
    """Returns name, value as JSON and the rest behind an argument; None if it is not complete."""
    if text.startswith(")"):
        return None
    name, equals, written = text.removeprefix(", ").partition("=")
    if not equals or not written:
        return None
    if written[0] in "'\"":
        end = re.compile(rf"(?:[^{written[0]}\\]|\\.)*{written[0]}", re.DOTALL).match(written, 1)
        if end is None:
            return None
        value = _string(written[1 : end.end() - 1])
        rest = written[end.end() :]
    elif written[0] in "{[":
        reader = JsonArguments()
        value, rest = reader.push(written)
        if not reader.complete:
            return None
    else:
        end = re.compile(r"[^,)]*(?=[,)])").match(written)
        if end is None:
            return None
        value = _LITERALS.get(end[0], end[0])
        rest = written[end.end() :]
    return (name, value, rest) if rest else None


def _string(inner: str) -> str:
    """Returns a string that is written in Python or JSON, without its quotes, as JSON."""

    def character(escape: re.Match[str]) -> str:
        found = escape[1]
        return chr(int(found[1:], 16)) if len(found) > 1 else _ESCAPES.get(found, found)

    text = _ESCAPE.sub(character, inner)
    # Characters beyond the first 65536 are two escapes in JSON.
    return json.dumps(
        text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), ensure_ascii=False
    )
