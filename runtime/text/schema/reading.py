"""Reading JSON schemas: the schemas within them, what they refer to, and what they say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords with schemas by names."""
LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
"""Keywords with lists of schemas."""
SINGLE = ("items", "additionalItems", "additionalProperties")
"""Keywords with a schema; older drafts have lists there, too."""

_PLAIN = ("type", "title", "description", "default", "examples", "minLength", "maxLength")


def subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yields a schema and all schemas within it that are objects."""
    left = [schema]
    while left:
        part = left.pop()
        if not isinstance(part, Mapping):
            continue
        yield part
        for key, value in part.items():
            if key in NAMED and isinstance(value, Mapping):
                left += value.values()
            elif key in (*LISTED, *SINGLE):
                left += value if isinstance(value, list) else [value]


def map_schemas(schema: Any, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    """Returns a schema in which it and all within it are changed, from the outside inwards."""
    if not isinstance(schema, Mapping):
        return schema
    found = dict(change(schema))
    for key, value in found.items():
        if key in NAMED and isinstance(value, Mapping):
            found[key] = {name: map_schemas(each, change) for name, each in value.items()}
        elif key in (*LISTED, *SINGLE):
            if isinstance(value, list):
                found[key] = [map_schemas(each, change) for each in value]
            else:
                found[key] = map_schemas(value, change)
    return found


def is_plain(schema: Any) -> bool:
    """Whether values are strings of which the schema asks for no more than a length."""
    return (
        isinstance(schema, Mapping)
        and schema.get("type") == "string"
        and all(key in _PLAIN for key in schema)
    )


def length_pattern(schema: Mapping[str, Any]) -> str:
    """Returns how often a character may come in a string, as a regular expression says it."""
    return f"{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}"


def named_values(schema: Any) -> Sequence[Any] | None:
    """Returns the values of a schema that names them; else None."""
    if not isinstance(schema, Mapping) or not ("enum" in schema or "const" in schema):
        return None
    values: Sequence[Any] = schema["enum"] if "enum" in schema else [schema["const"]]
    return values


def lookup(reference: str, root: Any) -> Any:
    """Returns the schema that a reference names within the root; None if there is none."""
    found = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def resolve(schema: Any, root: Mapping[str, Any]) -> Any:
    """Returns the schema that another one is a mere reference to, within the root, or itself."""
    if not isinstance(schema, Mapping) or set(schema) - {"description", "title"} != {"$ref"}:
        return schema
    found = lookup(str(schema["$ref"]), root)
    return schema if found is None else found


def with_definitions(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema with the definitions of the root to which it may refer."""
    if not isinstance(schema, Mapping):
        return {}
    refers = '"$ref"' in json.dumps(schema)
    shared = {each: root[each] for each in ("$defs", "definitions") if refers and each in root}
    return {**shared, **schema}
