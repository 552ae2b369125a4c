"""Schemas of tools as clients send them: ignored, held, told apart, or named with their tool."""

from __future__ import annotations

import json

import pytest
from chats import CLOCK, FORMS, Chat, template

from edgespec.errors import InputError
from edgespec.runtime.text.tools.faults import call_faults

STRING = {"type": "string"}


def closed(**members):
    """An object of which all members must be there, and no others."""
    return {
        "type": "object",
        "properties": members,
        "required": list(members),
        "additionalProperties": False,
    }


def tool(schema, name="asked"):
    function = {"name": name, "parameters": schema}
    return {"type": "function", "function": function}


def call(arguments):
    written = json.dumps({"name": "asked", "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return Chat(tmp_path_factory.mktemp("hermes"), template("hermes"), FORMS["hermes"].tokens)


def takes(chat, schema, arguments, choice="required"):
    text = call(arguments)
    return chat.accepted(text, tools=[tool(schema), CLOCK], tool_choice=choice) == (text, True)


NOTHING = {
    "path": {"type": "string", "format": "path"},
    "reference": {"type": "string", "format": "uri-reference"},
    "binary": {"type": "string", "format": "binary", "contentEncoding": "base64"},
    "password": {"type": "string", "format": "password", "x-secret": True, "example": "x"},
    "not unique": {"type": "array", "items": STRING, "uniqueItems": False},
    "any names": {"type": "object", "propertyNames": {"type": "string", "title": "Key"}},
    "then alone": {**STRING, "then": {"const": 1}},
    "if alone": {**STRING, "if": {"const": 1}},
    "none depend": {"type": "object", "dependentRequired": {}},
    "not nothing": {**STRING, "not": False},
    "own dialect": {**STRING, "$schema": "https://example.com/dialect"},
}


@pytest.mark.parametrize("name", NOTHING)
@pytest.mark.parametrize("form", ["hermes", "tagged", "gemma", "lfm"])
def test_what_says_nothing_is_ignored(tmp_path, name, form):
    chat = Chat(tmp_path, template(form), FORMS[form].tokens)
    schema = closed(value=NOTHING[name])
    for choice in ("auto", "required"):
        assert chat.ask(tools=[tool(schema), CLOCK], tool_choice=choice).grammar is not None


A = closed(kind={"const": "a"}, x=STRING)
B = closed(kind={"enum": ["b", "c"]}, y=STRING)
APART = {
    "members": ([A, B], [{"kind": "a", "x": "1"}, {"kind": "c", "y": "1"}]),
    "names": ([closed(x=STRING), closed(y=STRING)], [{"x": ""}, {"y": ""}]),
    "types": ([STRING, {"type": ["array", "null"]}], ["a", None, [1]]),
    "numbers": ([{"type": "integer"}, {"type": "number"}], [1, 1.5]),
    "values": ([{"const": "a", "title": "A"}, {"enum": ["b", 1]}], ["a", "b", 1]),
    "nested": ([closed(of=A), closed(of=B)], [{"of": {"kind": "b", "y": ""}}]),
}


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("referred", [False, True])
def test_alternatives_that_can_be_told_apart_are_held(chat, name, referred):
    alternatives, values = APART[name]
    shared = {f"d{n}": each for n, each in enumerate(alternatives)} if referred else {}
    parts = [{"$ref": f"#/$defs/{key}"} for key in shared] or alternatives
    schema = {**closed(value={"oneOf": parts}), "$defs": shared}
    for value in values:
        assert takes(chat, schema, {"value": value})
    assert not takes(chat, schema, {"value": {"kind": "a", "y": "1"}})
    assert not takes(chat, schema, {"value": True})


UNHELD = {
    "not": {**STRING, "not": {"const": "x"}},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}},
    "uniqueItems": {"type": "array", "items": STRING, "uniqueItems": True},
    "contains": {"type": "array", "items": STRING, "contains": {"const": "b"}},
    "if": {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "look-around": {"type": "string", "pattern": "^(?!x)[a-z]+$"},
    "oneOf": {"oneOf": [{"type": "string", "maxLength": 3}, STRING]},
    "regex": {"type": "string", "pattern": "("},
    "Pointer": {"$ref": "#/$defs/none"},
    "Invalid type": {"type": "any"},
}
FITTING = {"propertyNames": {}, "if": {}, "dependentRequired": {}, "uniqueItems": ["a", "b"],
           "contains": ["b"]}  # fmt: skip


@pytest.mark.parametrize("name", UNHELD)
def test_what_cannot_be_held_is_named_with_its_tool(chat, name):
    schema = closed(value=UNHELD[name], other={"type": "integer"})
    for choice in ("required", "asked"):
        with pytest.raises(InputError, match=rf"^tool asked: its schema .*{name}") as caught:
            chat.ask(tools=[CLOCK, tool(schema)], tool_choice=choice)
        for internal in ("%json", "x-guidance", "BARE", " | ", "arguments_", "coerce"):
            assert internal not in str(caught.value)
    with pytest.raises(InputError, match=r"^json_schema cannot be used") as caught:
        chat.ask(json_schema=schema)
    assert "coerce" not in str(caught.value)


@pytest.mark.parametrize("name", UNHELD)
def test_where_the_model_decides_only_that_goes_unheld(chat, name):
    arguments = {"value": FITTING.get(name, "ab"), "other": 1}
    schema = closed(value=UNHELD[name], other={"type": "integer"})
    assert takes(chat, schema, arguments, "auto")
    assert not takes(chat, schema, {**arguments, "other": "x"}, "auto")
    tools = [tool(closed(value=STRING)), tool(schema, "other")]
    held = call({"value": "ab"})
    wrong = call({"value": 1})
    assert chat.accepted(held, tools=tools) == (held, True)
    assert chat.accepted(wrong, tools=tools)[0] != wrong


VIOLATING = {
    "not": "x", "uniqueItems": ["a", "a"], "contains": ["a"], "if": {"a": 1},
    "dependentRequired": {"a": 1}, "oneOf": "ab",
}  # fmt: skip


def read(chat, schema, arguments):
    """The calls of an answer, and what does not fit in them."""
    asked = chat.ask(tools=[tool(schema), CLOCK])
    asked.parser.push(call(arguments))
    calls = asked.parser.calls
    return [each.arguments for each in calls], call_faults(calls, asked.unheld)


@pytest.mark.parametrize("name", VIOLATING)
def test_what_was_not_held_is_checked_afterwards(chat, name, caplog):
    """The call is told as the model wrote it, with what does not fit."""
    schema = closed(value=UNHELD[name], other={"type": "integer"})
    fitting = {"value": FITTING.get(name, "abcd"), "other": 1}
    assert read(chat, schema, fitting) == ([fitting], ())
    wrong = {"value": VIOLATING[name], "other": 1}
    calls, (fault,) = read(chat, schema, wrong)
    assert calls == [wrong]
    assert fault == f"asked: {name if name != 'if' else 'required'} of value"
    assert f"does not fit the schema of its tool {fault}" in caplog.text
    assert read(chat, closed(value=STRING), {"value": 1})[1] == ()  # it was held
