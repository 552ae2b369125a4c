"""Every notation of arguments keeps one contract: what it writes, allows and reads is the same."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest
from grammars import Grammars
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.errors import InputError
from edgespec.runtime.text.lark import Spelling, quote
from edgespec.runtime.text.tools.gemma_codec import QUOTE
from edgespec.runtime.text.tools.notations import NOTATIONS
from edgespec.runtime.text.tools.signature import ToolSignature

SCHEMA = {
    "type": "object",
    "$defs": {
        "point": {
            "type": "object",
            "properties": {
                "x": {"type": "integer", "minimum": -9, "maximum": 99},
                "y": {"type": "number", "minimum": 0, "maximum": 5},
            },
            "required": ["x"],
            "additionalProperties": False,
        },
        "colour": {"enum": ["red", "blue"]},
    },
    "properties": {
        "title": {"type": "string", "description": "What it is called.", "maxLength": 12},
        "colour": {"$ref": "#/$defs/colour"},
        "level": {"enum": [1, "two", None]},
        "path": {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 3},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 1},
        "owner": {"anyOf": [{"type": "string", "maxLength": 6}, {"type": "null"}]},
        "big": {"type": "boolean"},
        "size": {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
    },
    "required": ["title", "tags"],
    "additionalProperties": False,
}
EMPTY = {"type": "object", "properties": {}}
# What stands behind the arguments, where their own end does not tell that they have ended.
ENDS = {
    "keywords": ")", "python": ")", "tagged": "</function>", "keys": "</tool_call>",
    "keys in line": "</tool_call>",
}  # fmt: skip

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<"), max_size=6)
POINT = st.fixed_dictionaries({"x": st.integers(-9, 99)}, optional={"y": st.integers(0, 5)})
ARGUMENTS = st.fixed_dictionaries(
    {"title": TEXT, "tags": st.lists(TEXT, min_size=1, max_size=3)},
    optional={
        "colour": st.sampled_from(["red", "blue"]),
        "level": st.sampled_from([1, "two", None]),
        "path": st.lists(POINT, max_size=3),
        "owner": TEXT | st.none(),
        "big": st.booleans(),
        "size": st.integers(0, 9) | st.none(),
    },
)


def in_order(arguments):
    """Arguments in the order of the schema, in which members must come."""
    ordered = {key: arguments[key] for key in SCHEMA["properties"] if key in arguments}
    if "path" in ordered:
        ordered["path"] = [dict(sorted(point.items())) for point in ordered["path"]]
    return ordered


class Notation:
    """A notation, whose grammar is over single bytes."""

    def __init__(self, name, grammars):
        self.name = name
        self.end = ENDS.get(name, "")
        self._codec = NOTATIONS[name]
        self._grammars = grammars

    def matcher(self, schema=SCHEMA):
        spelling = Spelling(self._grammars.special)
        rules = ToolSignature("f", schema).rules("arguments", self.name, spelling)
        lark = "\n".join([f"start: arguments {quote(self.end)}", *rules])
        return self._grammars.compiler.compile_answer(lark, schemas=[schema])

    def allows(self, text, schema=SCHEMA):
        return self._grammars.takes(self.matcher(schema), text)

    def write(self, arguments, schema=SCHEMA):
        return self._codec.write(arguments, schema) + self.end

    def read(self, text, size=1000, schema=SCHEMA):
        """The arguments; None if they are cut."""
        reader = self._codec.reader(schema)
        given = rest = ""
        for place in range(0, len(text), size):
            if reader.complete:
                rest += text[place : place + size]
                continue
            piece, rest = reader.push(text[place : place + size])
            given += piece
        if not reader.complete:
            return None
        assert self.end.startswith(rest)
        return json.loads(given)


@pytest.fixture(scope="module")
def grammars(tmp_path_factory):
    return Grammars(tmp_path_factory.mktemp("tokenizer"), [QUOTE])


@pytest.fixture(params=NOTATIONS, scope="module")
def notation(request, grammars):
    return Notation(request.param, grammars)


@given(arguments=ARGUMENTS, size=st.integers(1, 9))
@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
def test_what_is_written_is_allowed_and_read_back(notation, arguments, size):
    text = notation.write(in_order(arguments))
    assert notation.allows(text)
    assert notation.read(text, size) == arguments


def test_what_is_allowed_is_read_and_valid(notation, grammars):
    rng = random.Random(0)
    texts = [grammars.walk(notation.matcher(), rng) for _ in range(30)]
    ended = [text for text in texts if text is not None]
    assert len(ended) > 10
    for text in ended:
        jsonschema.validate(notation.read(text, 3), SCHEMA)


WHOLE = in_order({"title": "a", "tags": ["b"], "colour": "red", "size": 1, "path": [{"x": 1}]})


def test_what_is_cut_is_told(notation):
    text = notation.write(WHOLE)
    assert notation.read(text) == WHOLE
    for length in range(len(text)):
        assert not notation.allows(text[:length])
        # What follows the arguments may tell by its first letters that they have ended.
        read = notation.read(text[:length])
        assert read is None or (read == WHOLE and length > len(text) - len(notation.end))


@pytest.mark.parametrize(
    "change",
    [
        {"title": "longer than twelve"},
        {"colour": "green"},
        {"size": 10},
        {"size": "1"},
        {"tags": []},
        {"path": [{"y": 1}]},
        {"path": [{"x": 1}] * 4},
        {"big": None},
        {"level": 2},
        {"title": None},
        {"tags": None},
    ],
    ids=str,
)
def test_what_the_schema_forbids_cannot_come(notation, change):
    assert notation.allows(notation.write(WHOLE))
    changed = {**WHOLE, **change}
    if change in ({"title": None}, {"tags": None}):  # which are required
        changed = {key: value for key, value in WHOLE.items() if key not in change}
    assert not notation.allows(notation.write(in_order(changed)))


def test_a_function_without_parameters_takes_none(notation):
    nothing = notation.write({})
    for schema in (EMPTY, {"type": "object"}):
        assert notation.allows(nothing, schema)
        assert notation.read(nothing, schema=schema) == {}


def of(schema, **others):
    """A schema of an object with one member, which must come."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], **others}


WITHOUT_IT = "describe the parameter without it"
NO_SCHEMA = "tool f: its schema is not valid"
REFUSALS = [
    ("gemma", of({"type": "string", "pattern": "a"}), WITHOUT_IT),
    ("gemma", of({"not": {}}), WITHOUT_IT),
    ("gemma", of({"$ref": "#/$defs/none"}), WITHOUT_IT),
    ("gemma", of({"type": "object", "additionalProperties": {"type": "string"}}), WITHOUT_IT),
    ("gemma", of({"type": "thing"}), WITHOUT_IT),
    ("gemma", of(7), WITHOUT_IT),
    ("keywords", {"properties": {"a=b": {"type": "string"}}}, r"'a=b'.* rename it"),
    ("python", {"properties": {"a=b": {"type": "string"}}}, r"'a=b'.* rename it"),
    ("json", {"properties": [1]}, "cannot be used"),
    ("tagged", {"properties": [1]}, NO_SCHEMA),
    ("python", {"properties": [1]}, NO_SCHEMA),
    ("gemma", {"properties": [1]}, NO_SCHEMA),
    *[(name, of({"type": "thing"}), "cannot be used|without it") for name in NOTATIONS],
]


@pytest.mark.parametrize(("name", "schema", "message"), REFUSALS)
def test_what_a_notation_cannot_hold_is_refused(grammars, name, schema, message):
    with pytest.raises(InputError, match=message):
        Notation(name, grammars).matcher(schema)


TREE = {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"$ref": "#/$defs/tree"}}]}
RECURSIVE = of({"$ref": "#/$defs/tree"}, **{"$defs": {"tree": TREE}})
CODE = of({"type": "string", "pattern": "^ab+$"})
STRING = of({"type": "string"})
# What a model may write as the value of a, and how it is read; None for what it may not.
VALUES = [
    ("tagged", CODE, '"abb"', "abb"),
    ("tagged", CODE, '"ac"', None),
    ("python", STRING, "'Rome'", "Rome"),
    ("python", STRING, '"Rome"', "Rome"),
    ("python", STRING, """'a "b" \\'c\\' \\\\'""", """a "b" 'c' \\"""),
    ("python", STRING, '"a, b)"', "a, b)"),
    ("python", STRING, "'first\\nsecond\tthird\nfourth'", "first\nsecond\tthird\nfourth"),
    ("python", STRING, "''", ""),
    ("python", RECURSIVE, "True", True),
    ("python", RECURSIVE, "[true, [false]]", [True, [False]]),
    ("python", RECURSIVE, "[1]", None),
    ("keywords", RECURSIVE, "[true, [false]]", [True, [False]]),
]


@pytest.mark.parametrize(("name", "schema", "written", "read"), VALUES)
def test_values_of_a_notation(grammars, name, schema, written, read):
    notation = Notation(name, grammars)
    around = notation.write({"a": 77}, schema)
    text = around.replace("77", written)
    assert notation.allows(text, schema) is (read is not None)
    if read is not None:
        assert notation.read(text, 1, schema) == {"a": read}


def test_strings_of_keywords_may_be_escaped(grammars):
    text = 'title="\\ud83d\\ude00 \\u00e9\\/", tags=["a)"], x=1)'
    read = Notation("keywords", grammars).read(text, 5)
    assert read == {"title": "\U0001f600 \u00e9/", "tags": ["a)"], "x": 1}


def test_strings_between_tags_stand_as_they_are_unless_a_schema_says_more():
    codec = NOTATIONS["tagged"]
    plain = "<parameter=a>\nbb\n</parameter>\n"
    assert codec.write({"a": "bb"}) == codec.write({"a": "bb"}, STRING) == plain
    assert codec.write({"a": "bb"}, CODE) == plain.replace("bb", '"bb"')
