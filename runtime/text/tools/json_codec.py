"""Arguments as a JSON object, as most models write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgespec.runtime.text.lark import Spelling
from edgespec.runtime.text.schema.grammar import schema_rules
from edgespec.runtime.text.tools.codec import Codec, Schema


def write_json(value: Any) -> str:
    """Returns a value as JSON, as models learned to write it."""
    return json.dumps(value, ensure_ascii=False)


class JsonCodec(Codec):
    """An object.

    Parameters that are not named would be additional properties. They are left out unless the
    schema allows them by name.

    Args:
        spacing: name of one of `edgespec.runtime.text.schema.spacing.SPACINGS`.
    """

    def __init__(self, spacing: str = "json") -> None:
        self._spacing = spacing

    def rules(self, name: str, schema: Schema, spelling: Spelling) -> list[str]:
        """See `Codec`."""
        closed = {"additionalProperties": False} if "properties" in schema else {}
        return schema_rules(name, {"type": "object", **closed, **schema}, self._spacing)

    def reader(self, schema: Schema) -> JsonReader:
        """See `Codec`."""
        return JsonReader()

    def write(self, arguments: Mapping[str, Any], schema: Schema | None = None) -> str:
        """See `Codec`."""
        separators = (",", ":") if self._spacing == "compact" else None
        return json.dumps(arguments, ensure_ascii=False, separators=separators)


class JsonReader:
    """Finds the end of a JSON object or array.

    Attributes:
        complete: whether it has ended.
    """

    def __init__(self) -> None:
        self.complete = False
        self._depth = 0
        self._quoted = self._escaped = False

    def push(self, text: str) -> tuple[str, str]:
        """Returns the part of a text that belongs to the object, and the rest."""
        for place, letter in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = letter == "\\"
                self._quoted = letter != '"'
            elif letter == '"':
                self._quoted = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if not self._depth:
                    self.complete = True
                    return text[: place + 1], text[place + 1 :]
        return text, ""
