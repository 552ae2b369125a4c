"""Texts under a JSON schema are valid as what their JSON means, at every bound."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from chats import FORMS, Chat, template
from grammars import Grammars
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.errors import InputError
from edgespec.runtime.text.schema.patterns import matching_strings

BIG = 2**53 + 1  # the first integer that is no double
INT64 = {"minimum": -(2**63), "maximum": 2**63 - 1}
ZOD = {"minimum": -(2**53 - 1), "maximum": 2**53 - 1}
FLOAT = 1.7976931348623157e308


@pytest.fixture(scope="module")
def grammars(tmp_path_factory):
    return Grammars(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (ZOD, [2**53 - 1, -(2**53 - 1), 0, -7], [2**53, -(2**53)]),
        (INT64, [2**63 - 1, -(2**63), 0, -7], [2**63, -(2**63) - 1]),
        ({"minimum": 0, "maximum": 2**64 - 1}, [0, 2**64 - 1], [2**64, -1]),
        ({"minimum": BIG, "maximum": BIG}, [BIG], [BIG - 1, BIG + 1]),
        ({"exclusiveMinimum": BIG - 1}, [BIG, 10**30], [BIG - 1, 5]),
        ({"minimum": BIG - 1, "exclusiveMinimum": True}, [BIG], [BIG - 1]),
        ({"exclusiveMaximum": -(BIG - 1)}, [-BIG, -(10**30)], [-(BIG - 1), 0]),
        ({"maximum": 1e308}, [0, 10**300, -(10**320)], [10**309]),
        ({"minimum": 10**25}, [10**25, 10**26], [10**25 - 1, -(10**25)]),
        ({"minimum": BIG - 2, "multipleOf": 5}, [9007199254740995], [9007199254740996]),
        ({"allOf": [{"minimum": BIG}, {"maximum": BIG}]}, [BIG], [BIG - 1, BIG + 1]),
        ({"anyOf": [{"minimum": BIG}, {"maximum": 3}]}, [BIG, 3], [4, BIG - 1]),
    ],
    ids=str,
)
def test_bounds_of_integers_are_exact(grammars, schema, taken, refused):
    texts = [str(each) for each in taken]
    schema = {"type": "integer", **schema}
    assert grammars.taken(schema, *texts, *map(str, refused)) == texts


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"minimum": -FLOAT, "maximum": FLOAT}, ["0", "-5.5", "9" * 300], ["1" + "0" * 309]),
        ({"minimum": 1e20}, ["100000000000000000000", "100000000000000000000.5"], ["99999", "-1"]),
        ({"exclusiveMinimum": 1e20}, ["100000000000000000000.5"], ["100000000000000000000.0"]),
        ({"maximum": -1e20}, ["-100000000000000000000"], ["-99999999999999999999.9", "0"]),
        ({"minimum": 0.12345678901234568}, ["0.12345678901234568"], ["0.12345678901234567"]),
        ({"minimum": 5e-324, "maximum": 1}, ["1", "0.5", "1.0"], ["0", "0.0", "1.1"]),
        ({"minimum": 0, "maximum": 2**63}, ["0", "0.5", str(2**63)], [f"{2**63}.01", "-1"]),
    ],
    ids=lambda each: str(each)[:40],
)
def test_bounds_of_fractions_are_exact(grammars, schema, taken, refused):
    assert grammars.taken({"type": "number", **schema}, *taken, *refused) == taken


_BOUND = st.integers(-(2**65), 2**65) | st.sampled_from([0.1, 1.5, -0.25, 1e19, -1e300, 3e-9])


@settings(max_examples=40)
@given(_BOUND, _BOUND, st.booleans(), st.integers(-2, 2), st.sampled_from(["0", "0.1", "-0.25"]))
def test_what_is_taken_is_in_the_range(grammars, one, other, is_open, beside, more):
    low, high = sorted([one, other])
    names = ("exclusiveMinimum", "exclusiveMaximum") if is_open else ("minimum", "maximum")
    if low == high:
        return
    schema = {"type": "number", names[0]: low, names[1]: high}
    for bound in (Decimal(str(low)), Decimal(str(high))):
        value = bound + beside + Decimal(more) if abs(bound) < 10**25 else bound
        within = Decimal(str(low)) <= value <= Decimal(str(high))
        on = value in (Decimal(str(low)), Decimal(str(high)))
        taken = grammars.taken(schema, f"{value:f}") if value else []
        assert bool(taken) == (within and not (on and is_open) and bool(value))


def test_values_that_are_named_are_exact(grammars):
    values = ["a", BIG, None, True, 1.5, [BIG, {"k": 2**64}], 1e20]
    others = [BIG - 1, [BIG - 1, {"k": 2**64}], [BIG], 2**64]
    texts = [json.dumps(each) for each in values[:-1]] + ["100000000000000000000"]
    assert grammars.taken({"enum": values}, *texts, *map(json.dumps, others)) == texts
    assert grammars.taken({"const": BIG}, str(BIG), str(BIG - 1)) == [str(BIG)]


def test_exact_numbers_within_everything(grammars):
    node = {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": BIG},
            "name": {"type": "string"},
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            "pair": {"prefixItems": [{}, {"const": BIG}], "items": False, "type": "array"},
            "ids": {"type": "array", "items": {"enum": [BIG]}, "minItems": 1, "maxItems": 2},
        },
        "required": ["id"],
    }
    schema = {"$defs": {"node": node}, "$ref": "#/$defs/node"}
    good = [
        {"id": BIG},
        {"id": BIG, "name": "x", "next": {"id": BIG, "next": None}, "more": [{}, 1]},
        {"id": BIG, "pair": [1, BIG], "ids": [BIG, BIG]},
        {"id": BIG, "pair": []},
    ]
    bad = [
        {"id": 1},
        {"name": "x"},
        {"id": BIG, "next": {"id": BIG - 1}},
        {"id": BIG, "pair": [1, 2]},
        {"id": BIG, "pair": [1, BIG, 2]},
        {"id": BIG, "ids": []},
        {"id": BIG, "ids": [BIG] * 3},
    ]
    texts = [json.dumps(each) for each in good]
    twice = f'{{"id": {BIG}, "id": {BIG}}}'
    assert grammars.taken(schema, *texts, *map(json.dumps, bad), twice) == texts


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": BIG, "multipleOf": 7},
        {"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a", "minimum": BIG},
        {"type": "integer", "minimum": BIG, "maximum": BIG - 1},
        {"allOf": [{"const": BIG}, {"$ref": "#/$defs/a"}], "$defs": {"a": {}}},
    ],
    ids=str,
)
def test_what_cannot_be_held_is_told(grammars, schema):
    with pytest.raises(InputError, match=r"^json_schema has .*: (write|describe|widen) ") as caught:
        grammars.taken(schema)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        ('^[^"]$', ["\\", "a", "\n", "é"], ['"']),
        (r"^[^\\]$", ['"', "a", "\n"], ["\\"]),
        (r'^[^"\\]$', ["a", "/", "\x01"], ['"', "\\"]),
        (r'^[^"\n]$', ["\\", "\t"], ['"', "\n"]),
        (r"^\p{Cc}$", ["\n", "\x01"], ['"', "\\", "a"]),
        (r"^[\x00-\x21\x23-\x7e]$", ["a", "\\", "\n"], ['"']),
        (r'^"(?:[^"\\]|\\.)*"$', ['"a"', '"\\""', '"\\\\"'], ['"""', '"\\"', "a"]),
        (r'^[^/\\:*?"<>|]{3}$', ["abc"], ['a"c', "a\\c", "a:c"]),
        ("^[[]$", ["["], ["]", "\\"]),
        (r"^[^[\]]+$", ["ab"], ["[", "a]"]),
        ("^[a&&b]$", ["a", "b", "&"], ["c"]),
        (r"^[\w.-]+$", ["a.b-c"], ["a b"]),
        (r'"', ['a"b'], ["ab", "\\"]),
    ],
    ids=str,
)
def test_strings_are_tested_as_what_they_mean(grammars, pattern, taken, refused):
    texts = [json.dumps(each, ensure_ascii=False) for each in taken]
    others = [json.dumps(each, ensure_ascii=False) for each in refused]
    schema = {"type": "string", "pattern": pattern}
    assert grammars.taken(schema, *texts, *others) == texts
    named = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False}
    objects = [f"{{{text}: 1}}" for text in (*texts, *others)]
    assert grammars.taken(named, *objects) == objects[: len(texts)]


def test_lengths_are_counted_in_characters(grammars):
    one = [json.dumps(each, ensure_ascii=False) for each in ("a", '"', "\\", "\n", "\x01", "😀")]
    two = [json.dumps(each, ensure_ascii=False) for each in ("ab", '""', "\\n", "", "😀a")]
    assert grammars.taken({"type": "string", "minLength": 1, "maxLength": 1}, *one, *two) == one


def members(*names):
    return "{" + ", ".join(f'"{name}": 1' for name in names) + "}"


A_OR_B = {"patternProperties": {"^[ab]$": {"type": "integer"}}, "additionalProperties": False}
A_AND_B = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({**A_OR_B, "minProperties": 2}, ["ab"], ["aa", "a", "", "bb"]),
        ({**A_OR_B, "minProperties": 1}, ["a", "b", "ab"], [""]),
        ({**A_AND_B, "minProperties": 2}, ["ab", "ac", "abc"], ["a", "", "c", "cc", "cd"]),
        ({**A_AND_B, "minProperties": 2, "additionalProperties": False}, ["ab"], ["a", "ac"]),
        ({**A_AND_B, "maxProperties": 1}, ["", "a", "b", "c"], ["ab", "ac"]),
        ({**A_AND_B, "required": ["b"], "minProperties": 2}, ["ab", "bc"], ["b", "a"]),
        (
            {
                "patternProperties": {"^(x|y|z)$": {}},
                "additionalProperties": False,
                "minProperties": 2,
                "maxProperties": 2,
            },
            ["xy", "xz", "yz"],
            ["x", "xx", "xyz"],
        ),
    ],
    ids=str,
)
def test_members_are_counted_once_they_are_parsed(grammars, schema, taken, refused):
    texts = [members(*each) for each in taken]
    schema = {"type": "object", **schema}
    assert grammars.taken(schema, *texts, *[members(*each) for each in refused]) == texts


@pytest.mark.parametrize("more", [{}, {"required": ["a"]}, {"minProperties": 1}])
def test_no_member_comes_twice_by_an_escape(grammars, more):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "additionalProperties": {"type": "string"},
        **more,
    }
    escaped = r"\u0061"
    twice = f'{{"a": 1, "{escaped}": "x"}}'
    alone = f'{{"{escaped}": "x"}}'
    assert grammars.taken(schema, '{"a": 1, "b": "x"}', twice, alone) == ['{"a": 1, "b": "x"}']
    assert grammars.taken({**schema, "properties": {"a": {"const": "\x1b"}}}, r'{"a": "\u001b"}')


def test_names_that_may_be_many_are_not_counted_on(grammars):
    for schema in ({}, {"patternProperties": {"^x": {}}, "additionalProperties": False}):
        with pytest.raises(InputError, match="minProperties"):
            grammars.taken({"type": "object", "minProperties": 2, **schema})


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("^[a-c]$", ["a", "b", "c"]),
        ("^(?:red|green)_[01]$", ["green_0", "green_1", "red_0", "red_1"]),
        ("^a{1,2}b?$", ["a", "aa", "aab", "ab"]),
        (r"^a\.b$", ["a.b"]),
        ("^$", [""]),
        *[(each, None) for each in ("^a|b$", "a", "^a", "^[^a]$", "^a.b$", "^a+$", "^[a-z]{9}$")],
    ],
)
def test_names_of_patterns(pattern, names):
    assert matching_strings(pattern) == names


@pytest.mark.parametrize("form", ["hermes", "tagged", "gemma", "lfm", "olmo"])
def test_arguments_of_calls_are_exact(tmp_path, form):
    chat = Chat(tmp_path, template(form), FORMS[form].tokens)
    number = {"type": "integer", "minimum": -BIG, "exclusiveMaximum": 10}
    parameters = {
        "type": "object",
        "properties": {"days": {"enum": [BIG]}, "n": number},
        "required": ["days"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]
    written = FORMS[form].call.replace("2", str(BIG), 1)
    for city in (
        '"city": "Rome", ',
        'city="Rome", ',
        'city:<|"|>Rome<|"|>,',
        "<parameter=city>\nRome\n</parameter>\n",
    ):
        written = written.replace(city, "")
    asked = {"tools": tools, "tool_choice": "required"}
    assert chat.accepted(written, **asked) == (written, True)
    wrong = written.replace(str(BIG), str(BIG - 1))
    assert chat.accepted(wrong, **asked)[0] != wrong
