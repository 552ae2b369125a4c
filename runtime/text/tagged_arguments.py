"""Arguments between tags, as grammar rules and as JSON.

    <parameter=city>                      <arg_key>city</arg_key>
    Rome                                  <arg_value>Rome</arg_value>
    </parameter>

Qwen3-Coder and Qwen3.5 write them as on the left, GLM-4.5 and later as on the right. Strings stand
there as they are, other values as JSON. Strings whose schema asks for more than a length are
written as JSON too, since only then the schema can be enforced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.runtime.text.schema.grammar import schema_rules
from edgespec.runtime.text.schema.reading import (
    is_plain,
    length_pattern,
    named_values,
    resolve,
    with_definitions,
)
from edgespec.runtime.text.spelling import Spelling, quoted


@dataclass(frozen=True)
class Tags:
    """What stands around the parts of an argument.

    Attributes:
        open: text before the name.
        middle: text between name and value.
        close: text behind the value.
    """

    open: str
    middle: str
    close: str


PARAMETERS = Tags("<parameter=", ">\n", "\n</parameter>\n")
KEYS = Tags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
KEYS_IN_LINE = Tags("<arg_key>", "</arg_key><arg_value>", "</arg_value>")


def tagged_rules(name: str, schema: Mapping[str, Any], spelling: Spelling, tags: Tags) -> list[str]:
    """Returns Lark rules for the arguments of one function, in the order of its schema.

    Args:
        name: name of the first rule; further ones begin with it.
        schema: JSON schema of the arguments.
        spelling: how the grammar writes marks.
        tags: the tags.
    """
    rules = []
    parts = []
    close = spelling.marks(tags.close)
    for number, (key, given) in enumerate(schema.get("properties", {}).items()):
        rule = f"{name}_{number}"
        parts.append(rule if key in schema.get("required", ()) else f"{rule}?")
        found = resolve(given, schema)
        head = spelling.marks(f"{tags.open}{key}{tags.middle}")
        values = _texts(found)
        if values is not None:
            rules.append(f"{rule}: {head} ({' | '.join(map(quoted, values))}) {close}")
        elif is_plain(found):
            rules.append(f"{rule}: {head} {rule}_text")
            rules += spelling.ended(f"{rule}_text", tags.close, rf"(.|\n){length_pattern(found)}")
        else:
            rules.append(f"{rule}: {head} {rule}_json {close}")
            rules += schema_rules(f"{rule}_json", with_definitions(found, schema))
    return [f"{name}: {' '.join(parts) or quoted('')}", *rules]


class TaggedArguments:
    """Reads arguments and gives them as JSON, one after the other.

    Args:
        schema: JSON schema of the arguments.
        tags: the tags.

    Attributes:
        complete: whether they have ended.
    """

    def __init__(self, schema: Mapping[str, Any], tags: Tags) -> None:
        self.complete = False
        self._schema = schema
        self._tags = tags
        self._unread = ""
        self._begun = False

    def push(self, text: str) -> tuple[str, str]:
        """Returns the JSON of the arguments that are complete, and the rest of a text."""
        tags = self._tags
        self._unread += text
        pieces = []
        while self._unread.startswith(tags.open):
            argument, closed, rest = self._unread.partition(tags.close)
            if not closed:
                break
            self._unread = rest
            name, _, value = argument.removeprefix(tags.open).partition(tags.middle)
            before = ", " if self._begun else "{"
            pieces.append(f"{before}{json.dumps(name)}: {self._json(name, value)}")
            self._begun = True
        self.complete = not tags.open.startswith(self._unread[: len(tags.open)])
        if not self.complete:
            return "".join(pieces), ""
        pieces.append("}" if self._begun else "{}")
        return "".join(pieces), self._unread

    def _json(self, name: str, value: str) -> str:
        given = self._schema.get("properties", {}).get(name, {})
        found = resolve(given, self._schema)
        plain = is_plain(found) or _texts(found) is not None
        return json.dumps(value, ensure_ascii=False) if plain else value


def _texts(schema: Any) -> Sequence[str] | None:
    """Returns the values of a schema that names them, if all are strings; else None."""
    values = named_values(schema)
    return values if values and all(isinstance(each, str) for each in values) else None
