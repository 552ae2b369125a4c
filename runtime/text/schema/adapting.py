"""JSON schemas for llguidance's own compiler, so that it takes them for what they mean.

It takes numbers for doubles and counts members that have one name twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgespec.errors import InputError, reason
from edgespec.runtime.text.schema.numbers import has_exact_bounds, is_exact, round_bounds
from edgespec.runtime.text.schema.patterns import adapt_pattern
from edgespec.runtime.text.schema.reading import map_schemas, named_values, subschemas
from edgespec.runtime.text.schema.spacing import OPTIONS, add_spacing

_CONTROL = re.compile(r"\\u00[01]")


def adapt(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema that llguidance's compiler takes for what it means, or for less."""

    def changed(part: Mapping[str, Any]) -> Mapping[str, Any]:
        part = round_bounds(part)
        if isinstance(pattern := part.get("pattern"), str):
            part["pattern"] = adapt_pattern(pattern)
        if isinstance(named := part.get("patternProperties"), Mapping):
            part["patternProperties"] = {adapt_pattern(key): each for key, each in named.items()}
        return part

    for part in subschemas(schema):
        for value in named_values(part) or ():
            if not _is_exact_value(value):
                raise unheld({"const": value})
    found = add_spacing(map_schemas(schema, changed))
    if any(map(_is_open, subschemas(schema))) and not _CONTROL.search(json.dumps(schema)):
        # Else a member could have the name of another one, written as \u0061.
        found[OPTIONS] = {"json_allowed_escapes": 'nrbtf\\"', **found[OPTIONS]}
    return found


def json_expression(schema: Mapping[str, Any]) -> str:
    """Returns what stands in a Lark rule for a value of a schema that llguidance compiles."""
    return f"%json {json.dumps(adapt(schema))}"


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Whether an object may have members beside those that are named."""
    named = any(schema.get(key) for key in ("properties", "patternProperties", "required"))
    return named and schema.get("additionalProperties") is not False


def is_beyond_llguidance(schema: Mapping[str, Any]) -> bool:
    """Whether a part of a schema, apart from those in it, is beyond llguidance's compiler."""
    if not has_exact_bounds(schema) or not all(map(_is_exact_value, named_values(schema) or ())):
        return True
    least = schema.get("minProperties", 0)
    most = schema.get("maxProperties")
    if not isinstance(least, int) or (not least and most is None):
        return False
    required = schema.get("required", [])
    named = schema.get("properties", {})
    free = schema.get("additionalProperties") is not False or "patternProperties" in schema
    return (free and least > len(required) + 1) or bool(set(named) - set(required))


def _is_exact_value(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_exact_value, value.values()))
    return all(map(_is_exact_value, value)) if isinstance(value, list) else is_exact(value)


def unheld(what: Mapping[str, Any]) -> InputError:
    """Returns the error about a part of a schema to which no text can be held."""
    return InputError(
        f"has {reason(json.dumps(what), 80)}, to which a text cannot be held there: describe it "
        "otherwise, or leave it out"
    )
