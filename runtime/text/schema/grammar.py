"""JSON schemas as rules in Lark's notation, of which llguidance compiles all that it can.

Its own compiler takes numbers for doubles and counts members that have one name twice. Where a
schema has such parts, what is around them is written as rules here, and the rest is left to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgespec.errors import GrammarSizeError, InputError, reason
from edgespec.runtime.text.schema.adapting import is_beyond_llguidance, json_expression, unheld
from edgespec.runtime.text.schema.numbers import (
    BOUNDS,
    format_decimal,
    has_exact_bounds,
    is_number,
    number_terminal,
)
from edgespec.runtime.text.schema.patterns import matching_strings
from edgespec.runtime.text.schema.reading import resolve, subschemas, with_definitions
from edgespec.runtime.text.schema.spacing import OPTIONS, add_spacing

_NUMBERS = ("integer", "number")
_TYPES = (*_NUMBERS[1:], "string", "boolean", "null", "array", "object")
_NOTES = {
    "title", "description", "default", "examples", "$comment", "$schema", "$id", "$defs",
    "definitions", "format", "readOnly", "writeOnly", "deprecated", OPTIONS,
}  # fmt: skip
_JOINED = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_MOST_COUNTED = 20_000  # rules of members that are counted
_NAME = r"/\"([^\"\\\x00-\x1f\x7f]|\\[\"\\bfnrt])*\"/"


def schema_rules(name: str, schema: Mapping[str, Any], spacing: str = "json") -> list[str]:
    """Returns Lark rules for values of a schema.

    Args:
        name: name of the first rule; further ones begin with it.
        schema: JSON schema.
        spacing: name of one of `SPACINGS`, for what the schema leaves open.

    Raises:
        InputError: if a text cannot be held to what the schema says.
    """
    try:
        return _Rules(name, schema, spacing).lines
    except (TypeError, AttributeError, LookupError) as error:
        raise InputError(f"is not valid ({reason(error)}): correct it") from error


class _Rules:
    """Writes the rules of one schema."""

    def __init__(self, name: str, schema: Mapping[str, Any], spacing: str) -> None:
        self._name = name
        self._root = schema
        options = add_spacing(schema, spacing).get(OPTIONS, {})
        self._options = options
        space = options.get("whitespace_pattern")
        if space is None and options.get("whitespace_flexible", True):
            space = r"[\x20\x0A\x0D\x09]+"
        self._space = "" if space is None else f"({space})?"
        self._comma = self._sign(options.get("item_separator", ","))
        self._colon = self._sign(options.get("key_separator", ":"))
        self._references: dict[str, str] = {}
        self.lines: list[str] = []
        self._rule(schema)

    def _sign(self, sign: str) -> str:
        """Returns what stands in a rule for a sign, given as a regular expression."""
        return "/" + f"{self._space}{sign}{self._space}".replace("/", r"\/") + "/"

    def _between(self, opening: str, found: str, closing: str) -> str:
        return f"{self._sign(opening)} {found} {self._sign(closing)}"

    def _new(self) -> str:
        """Returns the name of the next rule, and takes its place."""
        self.lines.append("")
        number = len(self.lines) - 1
        return f"{self._name}_{number}" if number else self._name

    def _rule(self, schema: Any) -> str:
        place = len(self.lines)
        name = self._new()
        self.lines[place] = f"{name}: {self._expression(schema)}"
        return name

    def _terminal(self, body: str) -> str:
        place = len(self.lines)
        name = self._new().upper()
        self.lines[place] = f"{name}: {body}"
        return name

    def _expression(self, schema: Any) -> str:
        if not isinstance(schema, Mapping) or not self._is_special(schema):
            return self._compiled(schema)
        joined = next((key for key in _JOINED if key in schema), None)
        kind = schema.get("type", list(_TYPES))
        if joined is not None:
            return self._joined(joined, schema)
        if isinstance(kind, list):
            return self._any_of([_of_type(schema, each) for each in kind])
        if kind in _NUMBERS and "multipleOf" not in schema and not has_exact_bounds(schema):
            return self._terminal(number_terminal(schema))
        if kind == "array":
            return self._array(schema)
        return self._object(schema) if kind == "object" else self._compiled(schema)

    def _is_special(self, schema: Mapping[str, Any]) -> bool:
        """Whether a schema, or what it refers to, has parts for which rules must be written."""
        seen = set[str]()
        left = [schema]
        while left:
            for part in subschemas(left.pop()):
                if is_beyond_llguidance(part):
                    return True
                reference = part.get("$ref")
                if isinstance(reference, str) and reference not in seen:
                    seen.add(reference)
                    left.append(self._found(reference))
        return False

    def _found(self, reference: str) -> Mapping[str, Any]:
        found = resolve({"$ref": reference}, self._root) if reference != "#" else self._root
        return found if isinstance(found, Mapping) else {}

    def _compiled(self, schema: Any) -> str:
        """Returns what stands in a rule for values of a schema that llguidance compiles."""
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        whole = {**with_definitions(schema, self._root), OPTIONS: self._options}
        return json_expression(whole)

    def _joined(self, key: str, schema: Mapping[str, Any]) -> str:
        """As `_expression`, of a schema with a keyword that tells of other schemas or values."""
        kept = {each: schema[each] for each in schema.keys() - _NOTES - {key}}
        if key in ("const", "enum"):
            values = schema["enum"] if key == "enum" else [schema["const"]]
            return f"({' | '.join([self._value(value) for value in values])})"
        if key == "$ref":
            return self._compiled(schema) if kept else self._reference(schema["$ref"])
        alternatives = schema[key]
        if key == "allOf":
            alternatives, parts = [{}], alternatives
            for each in parts:
                if any(_meets(found, each) for found in alternatives):
                    return self._compiled(schema)
                alternatives = [{**found, **each} for found in alternatives]
        if any(_meets(kept, each) for each in alternatives):
            return self._compiled(schema)
        return self._any_of([{**kept, **each} for each in alternatives])

    def _value(self, value: Any) -> str:
        """Returns what stands in a rule for a certain value."""
        if isinstance(value, list):
            items = [{"const": each} for each in value]
            return self._array({"prefixItems": items, "items": False, "minItems": len(items)})
        if isinstance(value, Mapping):
            named = {key: {"const": each} for key, each in value.items()}
            closed = {"additionalProperties": False, "required": list(named)}
            return self._object({"properties": named, **closed})
        written = (
            format_decimal(value) if is_number(value) else json.dumps(value, ensure_ascii=False)
        )
        return json.dumps(written, ensure_ascii=False)

    def _reference(self, reference: str) -> str:
        if reference not in self._references:
            place = len(self.lines)
            name = self._new()
            self._references[reference] = name
            self.lines[place] = f"{name}: {self._expression(self._found(reference))}"
        return self._references[reference]

    def _any_of(self, schemas: Sequence[Any]) -> str:
        return f"({' | '.join([self._expression(each) for each in schemas])})"

    def _array(self, schema: Mapping[str, Any]) -> str:
        least = schema.get("minItems", 0)
        most = schema.get("maxItems")
        first = schema.get("prefixItems", [])[:most]
        items = schema.get("items", True)
        if items is False:
            most = len(first)
        room = None if most is None else most - len(first)
        found = ""
        if room != 0:
            found = self._repeated(self._rule(items), max(least - len(first), 0), room, bool(first))
        for place in reversed(range(len(first))):
            comma = f"{self._comma} " if place else ""
            found = f"{comma}{self._rule(first[place])} {found}"
            found = found if place < least else f"({found})?"
        return self._between(r"\[", found, r"\]")

    def _repeated(self, item: str, least: int, most: int | None, behind: bool) -> str:
        """Returns what stands in a rule for items, behind others or not."""
        if not behind:
            later = None if most is None else most - 1
            more = self._repeated(item, max(least - 1, 0), later, behind=True)
            return f"({item} {more}){'' if least else '?'}"
        if most == 0:
            return ""
        return f"({self._comma} {item}){{{least},{'' if most is None else most}}}"

    def _object(self, schema: Mapping[str, Any]) -> str:
        named = dict(schema.get("properties", {}))
        needed = set(schema.get("required", ()))
        others = schema.get("additionalProperties", True)
        named |= {key: others for key in schema.get("required", ()) if key not in named}
        free = [each for each in self._patterned(schema, named) if each]
        if others is not False:
            if free:
                raise unheld({"patternProperties": schema["patternProperties"]})
            taken = "|".join(_literal(key) for key in named)
            name = self._terminal(f'{_NAME} & ~/"({taken})"/' if taken else _NAME)
            free.append(f"{name} {self._colon} {self._rule(others)}")
        members = []
        for key, each in named.items():
            if each is not False:
                member = f"/{_literal(json.dumps(key, ensure_ascii=False))}/ {self._colon}"
                members.append((f"{member} {self._rule(each)}", key in needed))
            elif key in needed:
                raise unheld({"required": key})
        found = self._counted(members, " | ".join(free), schema)
        return self._between(r"\{", found, r"\}")

    def _patterned(self, schema: Mapping[str, Any], named: dict[str, Any]) -> Iterator[str]:
        """Adds to named members those that patterns name, and yields rules for all others."""
        given = list(named)
        for pattern, each in schema.get("patternProperties", {}).items():
            names = matching_strings(pattern)
            if any(names is None or key in names for key in given):
                raise unheld({"patternProperties": pattern})
            if names is None:
                string = self._compiled({"type": "string", "pattern": pattern})
                yield f"{string} {self._colon} {self._rule(each)}" if each is not False else ""
            else:
                named |= dict.fromkeys(names, each)

    def _counted(
        self, members: Sequence[tuple[str, bool]], free: str, schema: Mapping[str, Any]
    ) -> str:
        """Returns what stands in a rule for members in their order, and then free ones.

        Each rule is the rest behind some members, of which so many came. Free members may have one
        name, and count as one where some must come.
        """
        least = schema.get("minProperties", 0)
        most = schema.get("maxProperties")
        if len(members) * min(len(members), max(least, most or 0)) > _MOST_COUNTED:
            raise GrammarSizeError(f"has {len(members)} members to count: leave out maxProperties")
        item = "" if not free else self._rule_of(free)
        behind: dict[int, str] = {}
        for place in range(len(members), -1, -1):
            rest = {}
            for count in range(min(place, max(1, least, most or 0)) + 1):
                ways = []
                if place == len(members):
                    ways += self._free(item, least - count, most, count)
                else:
                    member, required = members[place]
                    after = behind.get(min(count + 1, max(1, least, most or 0)))
                    if after is not None and (most is None or count < most):
                        ways.append(f"{f'{self._comma} ' if count else ''}{member} {after}")
                    if not required and count in behind:
                        ways.append(behind[count])
                if ways:
                    rest[count] = self._rule_of(" | ".join(ways))
            behind = rest
        if 0 not in behind:
            raise unheld({"minProperties": least})
        return behind[0]

    def _free(self, item: str, needed: int, most: int | None, count: int) -> list[str]:
        room = None if most is None else most - count
        if needed > 1 or (needed == 1 and (not item or room == 0)):
            return []
        if not item or room == 0:
            return ['""']
        return [self._repeated(item, max(needed, 0), room, count > 0)]

    def _rule_of(self, body: str) -> str:
        place = len(self.lines)
        name = self._new()
        self.lines[place] = f"{name}: {body}"
        return name


def _of_type(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Returns what a schema says of values of one of its types."""
    kept = schema.items() if kind in _NUMBERS else [e for e in schema.items() if e[0] not in BOUNDS]
    return {**dict(kept), "type": kind}


def _meets(kept: Mapping[str, Any], alternative: Any) -> bool:
    """Whether what stands beside alternatives cannot just be added to one of them."""
    if not isinstance(alternative, Mapping) or (kept and "$ref" in alternative):
        return True
    return any(kept[key] != alternative[key] for key in kept.keys() & alternative.keys())


def _literal(text: str) -> str:
    return re.sub(r"([^\w\s\"\\-])", r"\\\1", text.replace("\\", r"\\"))
