"""Arguments between tags.

    <parameter=city>                      <arg_key>city</arg_key>
    Rome                                  <arg_value>Rome</arg_value>
    </parameter>

Qwen3-Coder and Qwen3.5 write them as on the left, GLM-4.5 and later as on the right. Strings stand
there as they are, other values as JSON. Strings whose schema asks for more than a length are
written as JSON too, since only then the schema can be enforced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.runtime.text.lark import Spelling, quote
from edgespec.runtime.text.schema.grammar import schema_rules
from edgespec.runtime.text.schema.reading import (
    is_plain,
    length_pattern,
    named_values,
    resolve,
    with_definitions,
)
from edgespec.runtime.text.tools.codec import Codec, MemberReader, Schema
from edgespec.runtime.text.tools.json_codec import write_json


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


class TaggedCodec(Codec):
    """Arguments between tags, in the order of the schema.

    Args:
        tags: the tags.
    """

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self.marks = f"{tags.open}{tags.middle}{tags.close}"

    def rules(self, name: str, schema: Schema, spelling: Spelling) -> list[str]:
        """See `Codec`."""
        tags = self._tags
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
                rules.append(f"{rule}: {head} ({' | '.join(map(quote, values))}) {close}")
            elif is_plain(found):
                rules.append(f"{rule}: {head} {rule}_text")
                text = rf"(.|\n){length_pattern(found)}"
                rules += spelling.ended(f"{rule}_text", tags.close, text)
            else:
                rules.append(f"{rule}: {head} {rule}_json {close}")
                rules += schema_rules(f"{rule}_json", with_definitions(found, schema))
        return [f"{name}: {' '.join(parts) or quote('')}", *rules]

    def reader(self, schema: Schema) -> TaggedReader:
        """See `Codec`."""
        return TaggedReader(schema, self._tags)

    def write(self, arguments: Mapping[str, Any], schema: Schema | None = None) -> str:
        """See `Codec`. Without a schema, strings stand as they are."""
        tags = self._tags
        written = []
        for name, value in arguments.items():
            plain = isinstance(value, str) and (schema is None or _is_text(name, schema))
            text = value if plain else write_json(value)
            written.append(f"{tags.open}{name}{tags.middle}{text}{tags.close}")
        return "".join(written)


class TaggedReader(MemberReader):
    """Reads arguments up to what is no opening tag.

    Args:
        schema: JSON schema of the arguments.
        tags: the tags.
    """

    def __init__(self, schema: Schema, tags: Tags) -> None:
        super().__init__()
        self._schema = schema
        self._tags = tags

    def _member(self, text: str) -> tuple[str, str, str] | None:
        tags = self._tags
        if not text.startswith(tags.open):
            return None
        argument, closed, rest = text.partition(tags.close)
        if not closed:
            return None
        name, _, value = argument.removeprefix(tags.open).partition(tags.middle)
        return name, write_json(value) if _is_text(name, self._schema) else value, rest

    def _ends(self, text: str) -> bool:
        tag = self._tags.open
        return not tag.startswith(text[: len(tag)])


def _is_text(name: str, schema: Schema) -> bool:
    """Whether values of a parameter stand as they are."""
    found = resolve(schema.get("properties", {}).get(name, {}), schema)
    return is_plain(found) or _texts(found) is not None


def _texts(schema: Any) -> Sequence[str] | None:
    """Returns the values of a schema that names them, if all are strings; else None."""
    values = named_values(schema)
    return values if values and all(isinstance(each, str) for each in values) else None
