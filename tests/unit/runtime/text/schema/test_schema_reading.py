"""What JSON schemas have in them, and which of them exclude each other."""

from __future__ import annotations

import pytest

from edgespec.runtime.text.schema.disjoint import are_disjoint
from edgespec.runtime.text.schema.reading import (
    lookup,
    map_schemas,
    resolve,
    subschemas,
    with_definitions,
)

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
ROOT = {
    "$defs": {"name": STRING, "list": {"items": {"$ref": "#/$defs/name"}}},
    "properties": {"a": INTEGER, "b": {"anyOf": [STRING, True]}},
    "additionalProperties": {"const": {"type": "no schema"}},
}


def test_all_schemas_within_one_are_found():
    found = list(subschemas(ROOT))
    assert found[0] is ROOT
    for part in (STRING, INTEGER, ROOT["$defs"]["list"], ROOT["additionalProperties"]):
        assert part in found
    assert {"type": "no schema"} not in found
    assert list(subschemas(True)) == []


def test_all_schemas_within_one_are_changed():
    numbered = map_schemas(ROOT, lambda part: {**part, "title": len(part)})
    assert numbered["title"] == 3
    assert numbered["$defs"]["list"]["items"] == {"$ref": "#/$defs/name", "title": 1}
    assert numbered["properties"]["b"]["anyOf"] == [{**STRING, "title": 1}, True]
    assert numbered["additionalProperties"]["const"] == {"type": "no schema"}
    assert "title" not in ROOT


def test_references_within_the_root_are_followed():
    assert lookup("#/$defs/name", ROOT) is STRING
    assert lookup("#/$defs/none", ROOT) is None
    assert resolve({"$ref": "#/$defs/name", "title": "Name"}, ROOT) is STRING
    for schema in ({"$ref": "#/$defs/none"}, {"$ref": "#/$defs/name", "maxLength": 1}, STRING, 7):
        assert resolve(schema, ROOT) is schema
    refers = {"$ref": "#/$defs/name"}
    assert with_definitions(refers, ROOT) == {"$defs": ROOT["$defs"], **refers}
    assert with_definitions(STRING, ROOT) == STRING


def tagged(value, **others):
    return {
        "type": "object",
        "properties": {"kind": {"const": value}, **others},
        "required": ["kind"],
    }


@pytest.mark.parametrize(
    ("schemas", "disjoint"),
    [
        ([STRING, INTEGER, {"const": None}], True),
        ([STRING, {"const": "a"}], False),
        ([{"enum": ["a", 1]}, {"const": "b"}], True),
        ([{"enum": ["a", 1]}, {"const": 1}], False),
        ([tagged("a"), tagged("b", x=STRING)], True),
        ([tagged("a"), tagged("a", x=STRING)], False),
        ([{"$ref": "#/$defs/name"}, INTEGER], True),
        ([{"$ref": "#/$defs/none"}, INTEGER], False),
        ([INTEGER, {"type": "number"}], True),
        ([{"const": number} for number in range(65)], False),
    ],
)
def test_alternatives_are_disjoint_where_that_is_certain(schemas, disjoint):
    assert are_disjoint(schemas, ROOT) is disjoint
