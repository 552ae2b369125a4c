"""Notations of arguments that are not JSON: rich schemas, written and read back."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest
from chats import FORMS, QUESTION, chat_tokenizer, template
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.errors import InputError
from edgespec.llm.chat import ChatOptions, conversation
from edgespec.runtime.sampling.grammar import GrammarCompiler

SCHEMA = {
    "type": "object",
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "number"}},
            "required": ["x"],
        },
        "colour": {"enum": ["red", "blue"]},
    },
    "properties": {
        "title": {"type": "string", "description": "What it is called.", "maxLength": 12},
        "colour": {"$ref": "#/$defs/colour"},
        "level": {"enum": [1, "two", None]},
        "path": {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 3},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "owner": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "big": {"type": "boolean"},
        "size": {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
    },
    "required": ["title", "tags"],
    "additionalProperties": False,
}
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<"), max_size=6)
POINT = st.fixed_dictionaries({"x": st.integers(-9, 99)}, optional={"y": st.integers(0, 5)}).map(
    lambda point: dict(sorted(point.items()))  # in the order of the schema
)
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


def in_gemma(value):
    """Write a value as Gemma 4 does."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{in_gemma(value[key])}' for key in sorted(value))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(in_gemma, value))}]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def told(value):
    """Pairs of name and value in the order of the schema."""
    return [(key, value[key]) for key in SCHEMA["properties"] if key in value]


def in_json(value):
    return json.dumps(value, ensure_ascii=False)


def in_python(value):
    """Write a value as LFM2 does."""
    return str(value) if value is None or isinstance(value, bool) else in_json(value)


def between_tags(key, value):
    """All but two parameters may be no strings."""
    return value if key in ("title", "colour") else in_json(value)


def in_tags(value):
    """Write arguments as Qwen3-Coder does."""
    pairs = [(key, between_tags(key, each)) for key, each in told(value)]
    return "".join([f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in pairs])


def in_keys(value):
    """Write arguments as GLM-4.5 does."""
    pairs = [(key, between_tags(key, each)) for key, each in told(value)]
    return "".join(
        [f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n" for key, text in pairs]
    )


def in_keys_in_line(value):
    """Write arguments as GLM-4.7 does."""
    return re.sub("(</arg_(key|value)>)\n", r"\1", in_keys(value))


def in_keywords(value):
    """Write arguments as OLMo 3 does."""
    return ", ".join([f"{key}={in_json(each)}" for key, each in told(value)])


def in_python_keywords(value):
    """Write arguments as LFM2 does."""
    return ", ".join([f"{key}={in_python(each)}" for key, each in told(value)])


WRITTEN = {
    "gemma": ("<|tool_call>call:f", in_gemma, "<tool_call|>"),
    "tagged": ("<tool_call>\n<function=f>\n", in_tags, "</function>\n</tool_call>"),
    "glm 4.5": ("<tool_call>f\n", in_keys, "</tool_call>"),
    "glm 4.7": ("<tool_call>f", in_keys_in_line, "</tool_call>"),
    "olmo": ("<function_calls>f(", in_keywords, ")</function_calls>"),
    "lfm": ("<|tool_call_start|>[f(", in_python_keywords, ")]<|tool_call_end|>"),
}


class Notation:
    """A notation, with a tokenizer for it."""

    def __init__(self, name, folder):
        self.begin, self.write, self.end = WRITTEN[name]
        self.tokenizer = chat_tokenizer(folder, template(name), FORMS[name].tokens)
        self._compiler = GrammarCompiler(folder, self.tokenizer.vocab_size, [0])

    def ask(self, schema):
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        options = ChatOptions(tools=[tool], tool_choice="f")
        return conversation(
            self.tokenizer,
            partial(self.tokenizer.encode, add_special=False),
            lambda: self._compiler,
            QUESTION,
            options,
        )

    def call(self, arguments):
        return f"{self.begin}{self.write(arguments)}{self.end}"

    def allows(self, text, schema=SCHEMA):
        grammar = self.ask(schema).grammar
        tokens = self.tokenizer.encode(text, add_special=False)
        if grammar.valid(tokens) < len(tokens):
            return False
        for token in tokens:
            grammar.advance(token)
        return bool(grammar.allowed()[0])


@pytest.fixture(params=WRITTEN, scope="module")
def notation(request, tmp_path_factory):
    return Notation(request.param, tmp_path_factory.mktemp(request.param))


@given(arguments=ARGUMENTS, size=st.integers(1, 9))
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_arguments_are_allowed_and_read_back(notation, arguments, size):
    text = notation.call(arguments)
    assert notation.allows(text)
    reader = notation.ask(SCHEMA).reader
    for place in range(0, len(text), size):
        reader.push(text[place : place + size])
    [call] = reader.calls
    assert call.arguments == arguments


WHOLE = {"title": "a", "tags": ["b"], "colour": "red", "size": 1, "path": [{"x": 1}]}


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
    assert notation.allows(notation.call(WHOLE))
    changed = {**WHOLE, **change}
    if change in ({"title": None}, {"tags": None}):  # which are required
        changed = {key: value for key, value in WHOLE.items() if key not in change}
    assert not notation.allows(notation.call(changed))


def test_a_function_without_parameters_takes_none(notation):
    empty = {"type": "object", "properties": {}}
    nothing = notation.begin + ("{}" if "call:" in notation.begin else "") + notation.end
    assert notation.allows(nothing, empty)
    assert notation.allows(nothing, {"type": "object"})
    reader = notation.ask(empty).reader
    reader.push(nothing)
    assert reader.calls[0].arguments == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "a"},
        {"not": {}},
        {"$ref": "#/$defs/none"},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "thing"},
        7,
    ],
    ids=str,
)
def test_gemma_refuses_what_cannot_be_enforced(tmp_path, schema):
    parameters = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(InputError, match="describe the parameter without it"):
        Notation("gemma", tmp_path).ask(parameters)


def test_between_tags_a_pattern_is_enforced_as_json(tmp_path):
    notation = Notation("tagged", tmp_path)
    schema = {"type": "object", "properties": {"tags": {"type": "string", "pattern": "^ab+$"}}}
    assert notation.allows(notation.call({"tags": "abb"}), schema)
    assert not notation.allows(notation.call({"tags": "ac"}), schema)
    with pytest.raises(InputError, match="tool f: its schema cannot be used"):
        notation.ask({"type": "object", "properties": {"tags": {"type": "thing"}}})


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("'Rome'", "Rome"),
        ('"Rome"', "Rome"),
        ("""'a "b" \\'c\\' \\\\'""", """a "b" 'c' \\"""),
        ('"a, b)"', "a, b)"),
        ("'first\\nsecond\tthird\nfourth'", "first\nsecond\tthird\nfourth"),
        ("''", ""),
    ],
)
def test_strings_of_lfm_may_have_either_quotes(tmp_path, written, read):
    notation = Notation("lfm", tmp_path)
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    text = f"{notation.begin}text={written}{notation.end}"
    assert notation.allows(text, schema)
    reader = notation.ask(schema).reader
    for letter in text:
        reader.push(letter)
    assert reader.calls[0].arguments == {"text": read}


def test_strings_of_olmo_are_json(tmp_path):
    notation = Notation("olmo", tmp_path)
    reader = notation.ask(SCHEMA).reader
    reader.push(
        f'{notation.begin}title="\\ud83d\\ude00 \\u00e9\\/", tags=["a)"], x=1{notation.end}'
    )
    assert reader.calls[0].arguments == {"title": "\U0001f600 \u00e9/", "tags": ["a)"], "x": 1}


@pytest.mark.parametrize("name", ["olmo", "lfm"])
def test_a_parameter_that_keywords_cannot_name_is_refused(tmp_path, name):
    parameters = {"type": "object", "properties": {"a=b": {"type": "string"}}}
    with pytest.raises(InputError, match=r"'a=b'.* rename it"):
        Notation(name, tmp_path).ask(parameters)


def test_a_union_in_keywords_may_refer_to_itself(tmp_path):
    tree = {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"$ref": "#/$defs/tree"}}]}
    schema = {
        "type": "object",
        "$defs": {"tree": tree},
        "properties": {"tree": {"$ref": "#/$defs/tree"}},
        "required": ["tree"],
    }
    notation = Notation("lfm", tmp_path)
    for value, allowed in (("True", True), ("[true, [false]]", True), ("[1]", False)):
        assert notation.allows(f"{notation.begin}tree={value}{notation.end}", schema) is allowed
