"""Arguments between tags, as Qwen3-Coder and Qwen3.5 write them, as grammar rules and as JSON.

    <parameter=city>
    Rome
    </parameter>

Strings stand there as they are, other values as JSON. Strings whose schema asks for more than a
length are written as JSON too, since only then the schema can be enforced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_OPEN, _CLOSE = "<parameter=", "\n</parameter>\n"
_PLAIN = ("type", "title", "description", "default", "examples", "minLength", "maxLength")


def tagged_rules(name: str, schema: Mapping[str, Any]) -> list[str]:
    """Returns Lark rules for the arguments of one function, in the order of its schema.

    Args:
        name: name of the first rule; further ones begin with it.
        schema: JSON schema of the arguments.
    """
    rules, parts = [], []
    for number, (key, given) in enumerate(schema.get("properties", {}).items()):
        rule = f"{name}_{number}"
        parts.append(rule if key in schema.get("required", ()) else f"{rule}?")
        found = _resolved(given, schema)
        values = _texts(found)
        head = json.dumps(f"{_OPEN}{key}>\n", ensure_ascii=False)
        close = json.dumps(_CLOSE)
        if values is not None:
            choices = " | ".join(json.dumps(each, ensure_ascii=False) for each in values)
            rules.append(f"{rule}: {head} ({choices}) {close}")
        elif _is_plain(found):
            least, most = found.get("minLength", 0), found.get("maxLength", "")
            rules.append(f"{rule}: {head} {rule}_text")
            rules.append(f"{rule}_text[lazy]: /(.|\\n){{{least},{most}}}\\n<\\/parameter>\\n/")
        else:
            shared = {each: schema[each] for each in ("$defs", "definitions") if each in schema}
            options = {
                "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ",
            }  # fmt: skip
            value = {**shared, **(found if isinstance(found, Mapping) else {})}
            rules.append(f"{rule}: {head} {rule}_json {close}")
            rules.append(f"{rule}_json: %json {json.dumps({**value, 'x-guidance': options})}")
    return [f"{name}: {' '.join(parts) or json.dumps('')}", *rules]


class TaggedArguments:
    """Reads arguments and gives them as JSON, one after the other.

    Args:
        schema: JSON schema of the arguments.

    Attributes:
        complete: whether they have ended.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.complete = False
        self._schema = schema
        self._unread = ""
        self._begun = False

    def push(self, text: str) -> tuple[str, str]:
        """Returns the JSON of the arguments that are complete, and the rest of a text."""
        self._unread += text
        pieces = []
        while self._unread.startswith(_OPEN):
            argument, closed, rest = self._unread.partition(_CLOSE)
            if not closed:
                break
            self._unread = rest
            name, _, value = argument.removeprefix(_OPEN).partition(">\n")
            before = ", " if self._begun else "{"
            pieces.append(f"{before}{json.dumps(name)}: {self._json(name, value)}")
            self._begun = True
        self.complete = not _OPEN.startswith(self._unread[: len(_OPEN)])
        if not self.complete:
            return "".join(pieces), ""
        pieces.append("}" if self._begun else "{}")
        return "".join(pieces), self._unread

    def _json(self, name: str, value: str) -> str:
        given = self._schema.get("properties", {}).get(name, {})
        found = _resolved(given, self._schema)
        plain = _is_plain(found) or _texts(found) is not None
        return json.dumps(value, ensure_ascii=False) if plain else value


def _is_plain(schema: Any) -> bool:
    """Whether a value is a string that is written as it is."""
    return (
        isinstance(schema, Mapping)
        and schema.get("type") == "string"
        and all(key in _PLAIN for key in schema)
    )


def _texts(schema: Any) -> Sequence[str] | None:
    """Returns the values of a schema that names them, if all are strings; else None."""
    if not isinstance(schema, Mapping) or not ("enum" in schema or "const" in schema):
        return None
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    return values if values and all(isinstance(each, str) for each in values) else None


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Returns the schema that another one refers to, within the root, or itself."""
    if not isinstance(schema, Mapping) or set(schema) - {"description", "title"} != {"$ref"}:
        return schema
    found: Any = root
    for part in str(schema["$ref"]).removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return schema if found is None else found
