"""Answers in a given form, asked for as OpenAI's client asks."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from servers import MODEL, PROMPT, refused

MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
NONSENSE = {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}


@pytest.fixture(scope="module")
def speaking(ending):
    return ending.client()


def test_a_schema_holds(speaking):
    for seed in range(4):
        given = speaking.chat.completions.create(
            model=MODEL, messages=MESSAGES, response_format=FORMAT, seed=seed, max_tokens=100
        )
        assert given.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(given.choices[0].message.content), SCHEMA)


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_a_schema_holds_where_llama_cpp_has_it(speaking, kind):
    asked = {"model": MODEL, "seed": 1, "max_tokens": 100}
    format_ = {"type": kind, "schema": SCHEMA}
    given = speaking.chat.completions.create(messages=MESSAGES, response_format=format_, **asked)
    jsonschema.validate(json.loads(given.choices[0].message.content), SCHEMA)
    named = {**format_, "name": "person"}
    text = speaking.responses.create(
        model=MODEL, input="hello", text={"format": named}, extra_body={"seed": 1}
    ).output_text
    jsonschema.validate(json.loads(text), SCHEMA)


def test_a_json_object_begins_like_one(speaking):
    given = speaking.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=8
    )
    assert given.choices[0].message.content.startswith("{")


def test_what_is_beyond_openai(speaking):
    """Here to hold a text to a regular expression and a grammar."""
    for body, pattern in (
        ({"regex": "[ab]{3}c"}, "[ab]{3}c"),
        ({"grammar": 'start: "x" "y"~2'}, "xyy"),
    ):
        given = speaking.completions.create(model=MODEL, prompt=PROMPT, extra_body=body)
        assert re.fullmatch(pattern, given.choices[0].text)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"response_format": {"type": "json_schema"}}, "give json_schema"),
        ({"response_format": {**FORMAT, "type": "text"}}, "give json_schema"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "give json_schema"),
        ({"response_format": {**FORMAT, "schema": SCHEMA}}, "with 2 schemas: give json_schema"),
        ({"response_format": {**FORMAT, "type": "json_object"}}, "give json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type is 'xml'"),
        ({"response_format": FORMAT, "regex": "a"}, "can follow only one of them"),
        ({"response_format": NONSENSE}, "json_schema cannot be used"),
        ({"regex": "("}, "regex cannot be used"),
        ({"grammar": "x"}, "grammar cannot be used"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused(ending, fields, reason):
    refused(ending.post({"messages": MESSAGES, **fields}, "/v1/chat/completions"), 400, reason)


DEEP = "start: r0\n" + "".join(f'r{n}: "a" r{n + 1}\n' for n in range(2750)) + 'r2750: "b"'


@pytest.mark.parametrize(
    "asked", [{"grammar": DEEP}, {"json_schema": {"type": "integer", "multipleOf": 9999999}}]
)
def test_what_would_exhaust_the_server_is_refused(ending, asked):
    answer = ending.post({"prompt": PROMPT, **asked})
    assert answer.status_code == 400
    assert "too large" in answer.text
