"""Whether values fit a JSON schema, as another implementation has it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from edgespec.runtime.text.schema.validation import misfit

SCALARS = (
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["", "a", "bb", 1.0, 1.5])
)
NAMES = st.sampled_from(["a", "b", "bb"])
VALUES = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(NAMES, each, max_size=3)
)
SMALL = st.integers(0, 3)
KINDS = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])


def keywords(each):
    """Objects of a few keywords; `each` are schemas."""
    named = st.dictionaries(NAMES, each, max_size=2)
    listed = st.lists(each, min_size=1, max_size=2)
    names = st.lists(NAMES, max_size=2, unique=True)
    known = {
        "type": KINDS | st.lists(KINDS, min_size=1, max_size=2, unique=True),
        "const": VALUES,
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "required": names,
        "dependentRequired": st.dictionaries(NAMES, names, max_size=2),
        "uniqueItems": st.booleans(),
        "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b"]),
    }
    known |= dict.fromkeys(("properties", "dependentSchemas"), named)
    known |= dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), listed)
    single = ("items", "additionalProperties", "propertyNames", "contains")
    known |= dict.fromkeys((*single, "not", "if", "then", "else"), each)
    sizes = [f"{end}{of}" for end in ("min", "max") for of in ("Items", "Properties", "Length")]
    known |= dict.fromkeys((*sizes, "minContains", "maxContains"), SMALL)
    limits = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    known |= dict.fromkeys(limits, SMALL)
    pairs = st.sampled_from(list(known)).flatmap(lambda key: st.tuples(st.just(key), known[key]))
    return st.lists(pairs, max_size=4).map(dict)


LEAVES = st.booleans() | KINDS.map(lambda kind: {"type": kind}) | VALUES.map(lambda v: {"const": v})
SCHEMAS = st.recursive(LEAVES, keywords, max_leaves=8)


@settings(max_examples=500, deadline=None)
@given(VALUES, keywords(SCHEMAS), LEAVES, LEAVES)
def test_what_fits_is_what_fits_elsewhere(value, schema, one, other):
    schema["$defs"] = {"a": one, "b": other}
    assert (misfit(value, schema) is None) == Draft202012Validator(schema).is_valid(value)


def test_a_fault_has_its_place():
    schema = {"properties": {"of": {"items": {"required": ["a"]}}, "x": {"uniqueItems": True}}}
    assert misfit({"of": [{"a": 1}, {}]}, schema) == "required of of.1"
    assert misfit({"x": [1, 1.0]}, schema) == "uniqueItems of x"
    assert misfit([], {"type": "object"}) == "type of all"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5}, {"required": 3}, {"properties": []}, {"allOf": {}}, {"minItems": "x"},
        {"$ref": "#"}, {"$ref": "#/$defs/none"}, {"$ref": 5}, {"type": "any"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"items": {"pattern": "^(a+)+$"}},
        {"anyOf": [{"items": {"anyOf": [{"not": {"$ref": "#"}}] * 50}}] * 50},
    ],
)  # fmt: skip
def test_what_is_no_schema_or_too_large_does_no_harm(schema):
    misfit(["a" * 50 + "!"] * 2000, schema)
