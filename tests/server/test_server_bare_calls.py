"""Calls that a model writes without marks, and JSON that is none, as clients get them."""

from __future__ import annotations

import json

import jsonschema
import pytest
from chats import TOOLS, WEATHER, template
from pairs import with_eos
from scripts import write
from servers import MODEL, PLACE, make_bundle, serving

from edgespec import LLM

MESSAGES = [{"role": "user", "content": "hello"}]
ARGUMENTS = '{"city": "Rome", "days": 2}'
CALL = f'```json\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n```'
OTHER = '{"name": "get_wind", "arguments": {"city": "Rome"}}'


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare")
    path = with_eos(make_bundle(folder, template("hermes")), folder / "ending", 0)
    with LLM(path, draft="lookup", **PLACE) as llm, serving(llm) as running:
        yield running


def asked(running, **options):
    options = {"tools": TOOLS, "max_tokens": 200, "seed": 1, **options}
    return running.client().chat.completions.create(model=MODEL, messages=MESSAGES, **options)


def test_a_call_without_marks_comes_as_a_call(running, monkeypatch):
    write(monkeypatch, CALL)
    [choice] = asked(running).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    [call] = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", ARGUMENTS)
    chunks = list(asked(running, stream=True))
    pieces = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or ()]
    assert (pieces[0].index, pieces[0].function.name) == (0, "get_weather")
    assert "".join(each.function.arguments for each in pieces) == ARGUMENTS
    assert len(pieces) > 3
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_json_that_is_no_call_comes_as_text(running, monkeypatch):
    write(monkeypatch, OTHER)
    [choice] = asked(running).choices
    assert (choice.finish_reason, choice.message.content) == ("stop", OTHER)
    assert choice.message.tool_calls is None
    deltas = [chunk.choices[0].delta for chunk in asked(running, stream=True)]
    assert "".join(delta.content or "" for delta in deltas) == OTHER
    assert sum(bool(delta.content) for delta in deltas) > 3
    assert not any(delta.tool_calls for delta in deltas)


def test_a_call_that_begins_without_marks_is_held_to_its_schema(running, monkeypatch):
    write(monkeypatch, CALL.replace("Rome", "Constantinople").replace("2", "0"))
    for seed in range(3):
        [choice] = asked(running, seed=seed).choices
        [call] = choice.message.tool_calls
        found = json.loads(call.function.arguments)
        assert found["city"].startswith("Constant")
        jsonschema.validate(found, WEATHER["function"]["parameters"])


def test_the_responses_api_and_ollamas_have_the_call_too(running, monkeypatch):
    write(monkeypatch, CALL)
    tool = {"type": "function", **TOOLS[0]["function"], "strict": True}
    given = running.client().responses.create(model=MODEL, input="hello", tools=[tool])
    [item] = given.output
    assert (item.type, item.name, item.arguments) == ("function_call", "get_weather", ARGUMENTS)
    body = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "stream": False}
    message = running.post(body, "/api/chat").json()["message"]
    [call] = message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert call["function"]["arguments"] == json.loads(ARGUMENTS)
