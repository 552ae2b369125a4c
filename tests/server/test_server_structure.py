"""Answers in a given form, asked for as OpenAI's client asks."""

from __future__ import annotations

import json
import re

import httpx
import jsonschema
import openai
import pytest
from pairs import with_eos
from servers import MODEL, PLACE, PROMPT, serving

from edgespec import LLM

MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def url(served_bundle, tmp_path_factory):
    """A server of a model whose text can end."""
    path = with_eos(served_bundle, tmp_path_factory.mktemp("ending") / "bundle", 0)
    with LLM(path, draft="lookup", **PLACE) as llm, serving(llm) as running:
        yield running.url


@pytest.fixture(scope="module")
def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_a_schema_holds(client):
    for seed in range(4):
        given = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, response_format=FORMAT, seed=seed, max_tokens=100
        )
        assert given.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(given.choices[0].message.content), SCHEMA)


def test_a_schema_holds_in_a_stream(client):
    chunks = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format=FORMAT, seed=1, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    jsonschema.validate(json.loads(text), SCHEMA)


def test_a_json_object_begins_like_one(client):
    given = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=8
    )
    assert given.choices[0].message.content.startswith("{")


def test_what_is_beyond_openai(client):
    """Here to hold a text to a regular expression and a grammar."""
    for body, pattern in (
        ({"regex": "[ab]{3}c"}, "[ab]{3}c"),
        ({"grammar": 'start: "x" "y"~2'}, "xyy"),
    ):
        given = client.completions.create(model=MODEL, prompt=PROMPT, extra_body=body)
        assert re.fullmatch(pattern, given.choices[0].text)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"response_format": {"type": "json_schema"}}, "give json_schema"),
        ({"response_format": {**FORMAT, "type": "text"}}, "give json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type is 'xml'"),
        ({"response_format": FORMAT, "regex": "a"}, "can follow only one of them"),
        ({"regex": "("}, "regex cannot be used"),
        ({"grammar": "x"}, "grammar cannot be used"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused(url, fields, reason):
    response = httpx.post(f"{url}/v1/chat/completions", json={"messages": MESSAGES, **fields})
    assert response.status_code == 400
    assert reason in response.json()["error"]["message"]


def test_a_schema_that_means_nothing_is_refused(url):
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}
    body = {"messages": MESSAGES, "response_format": schema}
    response = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "json_schema cannot be used" in response.json()["error"]["message"]
