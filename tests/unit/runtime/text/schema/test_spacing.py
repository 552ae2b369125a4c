"""White space in JSON: one blank behind commas and colons, unless a schema says otherwise."""

from __future__ import annotations

import json

import pytest
from chats import FORMS, Chat, template
from grammars import Grammars

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {}},
    "required": ["a"],
}
VALUE = {"a": [1, 2], "b": {"c": [None, {"d": ""}]}}
USUAL = json.dumps(VALUE)
COMPACT = json.dumps(VALUE, separators=(",", ":"))
PRETTY = json.dumps(VALUE, indent=2)
MIXED = USUAL.replace(", ", ",  ")
ALL = (USUAL, COMPACT, PRETTY, MIXED)


@pytest.fixture(scope="module")
def grammars(tmp_path_factory):
    return Grammars(tmp_path_factory.mktemp("tokenizer"))


def test_json_is_written_as_models_learned_it(grammars):
    for schema in (SCHEMA, {"type": "object"}, {}, {"const": VALUE}, {"anyOf": [SCHEMA]}):
        assert grammars.taken(schema, *ALL) == [USUAL]


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({}, [USUAL]),
        ({"item_separator": ",", "key_separator": ":"}, [COMPACT]),
        ({"whitespace_flexible": False}, [COMPACT]),
        ({"whitespace_flexible": True}, list(ALL)),
        ({"whitespace_pattern": " "}, [USUAL, COMPACT]),
        ({"item_separator": ",  "}, [MIXED]),
    ],
    ids=str,
)
def test_what_a_schema_says_itself_wins(grammars, options, taken):
    assert grammars.taken({**SCHEMA, "x-guidance": options}, *ALL) == taken


def test_white_space_never_goes_on_for_ever(grammars):
    matcher = grammars.compiler.compile("json_schema", json.dumps(SCHEMA))
    assert not grammars.takes(matcher, USUAL.replace(" ", "  ", 1))
    assert not grammars.takes(matcher, f"\n{USUAL}")


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral", "tagged", "lfm", "olmo"])
def test_calls_have_the_same_spaces(tmp_path, name):
    """Values that are JSON within any notation of arguments, too."""
    form = FORMS[name]
    values = {"type": "array", "items": {"type": "integer"}}
    parameters = {"type": "object", "properties": {"city": values}, "required": ["city"]}
    function = {"name": "get_weather", "parameters": parameters}
    chat = Chat(tmp_path, template(name), form.tokens)
    asked = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    written = {
        "tagged": "<tool_call>\n<function=get_weather>\n<parameter=city>\n[1, 2]\n</parameter>\n"
        "</function>\n</tool_call>",
        "lfm": "<|tool_call_start|>[get_weather(city=[1, 2])]<|tool_call_end|>",
        "olmo": "<function_calls>get_weather(city=[1, 2])</function_calls>",
    }
    text = written.get(name) or form.call.replace('"Rome", "days": 2', "[1, 2]")
    assert chat.accepted(text, **asked) == (text, True)
    other = text.replace("[1, 2]", "[1,2]")
    assert chat.accepted(other, **asked)[0] != other


def test_what_the_schema_of_a_tool_says_itself_wins(tmp_path):
    chat = Chat(tmp_path, template("hermes"), FORMS["hermes"].tokens)
    parameters = {
        "type": "object",
        "properties": {"a": {}, "b": {}},
        "required": ["a", "b"],
        "x-guidance": {"item_separator": ",", "key_separator": ":"},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    for arguments, whole in (('{"a":1,"b":2}', True), ('{"a": 1, "b": 2}', False)):
        text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
        made, ended = chat.accepted(text, tools=tools, tool_choice="required")
        assert (made == text, ended) == (whole, whole)
