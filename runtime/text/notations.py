"""The notations of arguments: their grammar rules, and how they are read back as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from edgespec.runtime.text.gemma_arguments import QUOTE, GemmaArguments, GemmaRules
from edgespec.runtime.text.json_arguments import JsonArguments, json_rules, json_written
from edgespec.runtime.text.keyword_arguments import (
    KeywordArguments,
    keyword_rules,
    keywords_written,
)
from edgespec.runtime.text.spelling import Spelling
from edgespec.runtime.text.tagged_arguments import (
    KEYS,
    KEYS_IN_LINE,
    PARAMETERS,
    TaggedArguments,
    Tags,
    tagged_rules,
)

Schema = Mapping[str, Any]


class ArgumentReader(Protocol):
    """Reads arguments in some notation, as JSON.

    Attributes:
        complete: whether they have ended.
    """

    complete: bool

    def push(self, text: str) -> tuple[str, str]:
        """Returns the JSON of what was read, and the rest of a text."""
        ...


@dataclass(frozen=True)
class Notation:
    """A notation of arguments.

    Attributes:
        rules: returns Lark rules for arguments of a schema; the first has the given name.
        reader: returns a reader of arguments of a schema.
        marks: texts in which special tokens may occur.
        write: returns arguments as a model writes them; None if chat templates always do it.
    """

    rules: Callable[[str, Schema, Spelling], list[str]]
    reader: Callable[[Schema], ArgumentReader]
    marks: str = ""
    write: Callable[[Schema], str] | None = None


def _json(spacing: str) -> Notation:
    return Notation(
        lambda name, schema, _: json_rules(name, schema, spacing),
        lambda _: JsonArguments(),
        write=lambda arguments: json_written(arguments, spacing),
    )


def _tagged(tags: Tags) -> Notation:
    return Notation(
        lambda name, schema, spelling: tagged_rules(name, schema, spelling, tags),
        lambda schema: TaggedArguments(schema, tags),
        f"{tags.open}{tags.middle}{tags.close}",
    )


def _keywords(python: bool) -> Notation:
    return Notation(
        lambda name, schema, _: keyword_rules(name, schema, python),
        lambda _: KeywordArguments(),
        write=lambda arguments: keywords_written(arguments, python),
    )


NOTATIONS: Mapping[str, Notation] = {
    "json": _json("json"),
    "compact": _json("compact"),
    "loose": _json("loose"),
    "gemma": Notation(
        lambda name, schema, spelling: GemmaRules(name, schema, spelling).lines,
        lambda _: GemmaArguments(),
        QUOTE,
    ),
    "tagged": _tagged(PARAMETERS),
    "keys": _tagged(KEYS),
    "keys in line": _tagged(KEYS_IN_LINE),
    "keywords": _keywords(python=False),
    "python": _keywords(python=True),
}
"""The notations by their names."""
