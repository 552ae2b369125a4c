"""Arguments as a JSON object, as most models write them: as grammar rules, and where they end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgespec.runtime.text.schema.adapting import adapt
from edgespec.runtime.text.schema.grammar import schema_rules


def json_rules(name: str, schema: Mapping[str, Any], spacing: str = "json") -> list[str]:
    """Returns Lark rules for an object.

    Parameters that are not named would be additional properties. They are left out unless the
    schema allows them by name.

    Args:
        name: name of the first rule; further ones begin with it.
        schema: JSON schema of the arguments.
        spacing: name of one of `edgespec.runtime.text.schema.spacing.SPACINGS`.
    """
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return schema_rules(name, {"type": "object", **closed, **schema}, spacing)


def json_value(schema: Mapping[str, Any]) -> str:
    """Returns what stands in a Lark rule for a value of a schema."""
    return f"%json {json.dumps(adapt(schema))}"


def json_written(value: Any, spacing: str = "json") -> str:
    """Returns a value as a model writes it."""
    separators = (",", ":") if spacing == "compact" else None
    return json.dumps(value, ensure_ascii=False, separators=separators)


class JsonArguments:
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
