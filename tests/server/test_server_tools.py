"""Tools and reasoning, asked for as OpenAI's client asks."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Literal

import httpx
import jsonschema
import openai
import pydantic
import pytest
from chats import CLOCK, TOOLS, WEATHER, template
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairs import with_eos
from scripts import write
from servers import MODEL, PLACE, make_bundle, refused, serving

from edgespec import LLM

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
SHAPE = WEATHER["function"]["parameters"]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@contextmanager
def served(folder, source):
    """A server of a model with this template, whose text can end."""
    path = with_eos(make_bundle(folder, source), folder / "ending", 0)
    with LLM(path, draft="lookup", **PLACE) as llm, serving(llm) as running:
        yield running


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with served(tmp_path_factory.mktemp("tools"), template("hermes")) as running:
        yield running


@pytest.fixture(scope="module")
def reasoning(tmp_path_factory):
    """A server of a model whose reasoning the prompt begins."""
    begun = "{% if think or reasoning_effort %}<think>{% endif %}"
    source = template("hermes") + "{{ '</think>' if 0 }}" + begun
    with served(tmp_path_factory.mktemp("reasoning"), source) as running:
        yield running


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    with served(tmp_path_factory.mktemp("gemma"), template("gemma")) as running:
        yield running


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    with served(tmp_path_factory.mktemp("tagged"), template("tagged")) as running:
        yield running


@pytest.fixture(scope="module")
def client(running):
    return running.client()


def asked(client, **options):
    options = {"tools": TOOLS, "max_tokens": 220, "seed": 1, **options}
    return client.chat.completions.create(model=MODEL, messages=MESSAGES, **options)


@pytest.mark.parametrize("draft", ["none", "lookup"])
def test_calls_that_are_required_come_and_are_valid(client, draft):
    for seed in range(4):
        given = asked(
            client,
            seed=seed,
            tool_choice="required",
            parallel_tool_calls=False,
            extra_body={"speculative": {"draft": draft}},
        )
        [choice] = given.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        [call] = choice.message.tool_calls
        assert call.type == "function"
        assert call.function.name in ("get_weather", "clock")
        shape = SHAPE if call.function.name == "get_weather" else {"maxProperties": 0}
        jsonschema.validate(json.loads(call.function.arguments), shape)


def test_a_stream_has_the_same_calls(client):
    options = {"tool_choice": NAMED, "seed": 3, "parallel_tool_calls": False}
    [call] = asked(client, **options).choices[0].message.tool_calls
    chunks = list(asked(client, stream=True, **options))
    told = [chunk.choices[0].delta.tool_calls or () for chunk in chunks]
    assert all(len(each) <= 1 for each in told), "more than one piece of a call in a chunk"
    first, *others = pieces = [each for given in told for each in given]
    assert (first.index, first.type, first.function.name) == (0, "function", "get_weather")
    assert first.id
    assert not any(each.id or each.function.name for each in others)
    assert "".join(each.function.arguments for each in pieces) == call.function.arguments
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_some_tools_may_be_allowed(client):
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    for seed in range(3):
        given = asked(client, seed=seed, tool_choice=allowed, parallel_tool_calls=False)
        [call] = given.choices[0].message.tool_calls
        assert call.function.name == "get_weather"


def test_without_a_choice_text_is_free(client):
    """A model of random weights never writes the mark that begins a call."""
    [choice] = asked(client, max_tokens=20).choices
    assert choice.message.content
    assert choice.message.tool_calls is None
    assert choice.finish_reason in ("stop", "length")


def test_a_conversation_with_calls_goes_on(client):
    given = asked(client, tool_choice=NAMED, parallel_tool_calls=False)
    [call] = given.choices[0].message.tool_calls
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call.to_dict()]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    given = client.chat.completions.create(
        model=MODEL, messages=messages, tools=TOOLS, max_tokens=2
    )
    assert given.usage.completion_tokens == 2


def said_by(chunks):
    """The message that the chunks of a stream make."""
    calls = []
    text = ""
    for chunk in chunks:
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for piece in delta.tool_calls or ():
            if piece.id:
                function = {"name": piece.function.name, "arguments": ""}
                calls.append({"id": piece.id, "type": "function", "function": function})
            calls[piece.index]["function"]["arguments"] += piece.function.arguments
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


@pytest.mark.parametrize("model", ["running", "gemma", "tagged"])
@pytest.mark.parametrize("most", [40, 60, 80])
def test_a_call_that_was_cut_is_told_alike_and_taken_back(request, model, most):
    client = request.getfixturevalue(model).client()
    options = {"tool_choice": NAMED, "parallel_tool_calls": False, "max_tokens": most, "seed": 2}
    whole = asked(client, **options).choices[0].message
    streamed = said_by(asked(client, stream=True, **options))
    assert [(call.function.name, call.function.arguments) for call in whole.tool_calls or ()] == [
        tuple(call["function"].values()) for call in streamed["tool_calls"]
    ]
    answer = whole.to_dict()
    for said in (answer, streamed):
        further = [*MESSAGES, said, {"role": "user", "content": "go on"}]
        given = client.chat.completions.create(
            model=MODEL, messages=further, tools=TOOLS, max_tokens=2
        )
        assert given.usage.completion_tokens == 2


def test_calls_and_results_need_no_ids(running):
    call = {"type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "noon"},
    ]
    body = {"messages": messages, "tools": TOOLS, "max_tokens": 2}
    assert running.post(body, CHAT).json()["usage"]["completion_tokens"] == 2


def test_tokens_of_reasoning_are_counted(reasoning):
    client = reasoning.client()
    asking = {"model": MODEL, "seed": 2, "temperature": 1, "reasoning_effort": "low"}
    given = client.chat.completions.create(
        messages=MESSAGES, max_tokens=40, extra_body={"thinking_budget": 6}, **asking
    )
    counted = given.usage.completion_tokens_details.reasoning_tokens
    assert 0 < counted <= 10  # a character is completed first
    *_, last = client.chat.completions.create(
        messages=MESSAGES,
        max_tokens=40,
        extra_body={"thinking_budget": 6},
        **asking,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert last.usage.completion_tokens_details == given.usage.completion_tokens_details
    # All of an answer that is cut within its reasoning.
    given = client.chat.completions.create(messages=MESSAGES, max_tokens=7, **asking)
    assert given.usage.completion_tokens_details.reasoning_tokens == 7
    body = {"input": "hello", "max_output_tokens": 7, "reasoning": {"effort": "low"}}
    told = reasoning.post({**body, "seed": 2}, "/v1/responses").json()["usage"]
    assert told["output_tokens_details"] == {"reasoning_tokens": 7}
    given = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=7, seed=2)
    assert given.usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize(
    "name", ["thinking_budget", "thinking_token_budget", "thinking_budget_tokens"]
)
def test_a_budget_has_the_names_of_other_servers(reasoning, name):
    body = {"messages": MESSAGES, "chat_template_kwargs": {"think": True}, "max_tokens": 30}
    response = reasoning.post({**body, name: 0, "temperature": 0}, CHAT).json()
    assert "reasoning_content" not in response["choices"][0]["message"]
    response = reasoning.post({**body, name: -1, "temperature": 0}, CHAT).json()
    assert response["choices"][0]["message"]["reasoning_content"]


def function(**fields):
    return [{"type": "function", "function": {"name": "f", **fields}}]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}], "tool_choice": "required"},
         "tool_choice is 'required', but there is no such tool"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "f"}}},
         "tool_choice.type is 'custom'"),
        ({"tools": function(name="f g")}, "tools.0.function.name is 'f g'"),
        ({"tools": function(parameters={"type": "string"})}, "schema of type object"),
        ({"tools": function(parameters={"type": "object", "properties": {"a": {"type": "b"}}}),
          "tool_choice": "required"}, "tool f: its schema cannot be used (Invalid type: b)"),
        ({"tools": function(parameters={"type": "object", "properties": []}),
          "tool_choice": "required"}, "tool f: its schema cannot be used"),
        ({"tools": [CLOCK, CLOCK]}, "two tools have the name 'clock'"),
        ({"tool_choice": "required"}, "tool_choice is 'required'"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice is 'any'"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
         "tool_choice is 'f'"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {}}}, "name is missing"),
        ({"thinking_budget": -2}, "thinking_budget is -2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_used_is_refused(running, fields, reason):
    refused(running.post({"messages": MESSAGES, **fields}, CHAT), 400, reason)


KEYWORDS = st.sampled_from(
    [
        "type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "allOf",
        "$ref", "pattern", "format", "minimum", "maxLength", "minItems", "maxItems",
        "additionalProperties", "prefixItems", "x-guidance", "description",
    ]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9)
    | st.sampled_from(["string", "object", "array", "integer", "#", "#/properties/a", "["])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(KEYWORDS, inner, max_size=3)
    | st.dictionaries(st.sampled_from(["a", "b", ""]), inner, max_size=2),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(KEYWORDS, VALUES, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("name", ["running", "gemma", "tagged"])
def test_whatever_is_a_schema_is_used_or_refused(name, request, parameters):
    running = request.getfixturevalue(name)
    body = {"messages": MESSAGES, "tools": function(parameters=parameters), "max_tokens": 8}
    response = running.post({**body, "tool_choice": "required"}, CHAT)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        refused(response, 400, "")


@pytest.mark.parametrize("space", ["mcp__home", "mcp__home__"])
def test_functions_of_a_namespace_are_called_by_it(client, space):
    """Codex names each server of tools so, and finds a call by both names."""
    inner = {"type": "function", **CLOCK["function"]}
    tools = [
        inner,
        {"type": "namespace", "name": space, "description": "at home", "tools": [inner]},
        {"type": "web_search"},
    ]
    chosen = {"type": "function", "name": "clock", "namespace": space}
    asked = {
        "model": MODEL,
        "tools": tools,
        "tool_choice": chosen,
        "parallel_tool_calls": False,
        "max_output_tokens": 220,
        "extra_body": {"seed": 1, "client_metadata": {"session": "1"}},
    }
    given = client.responses.create(input="what time is it?", **asked).output
    events = client.responses.create(input="what time is it?", stream=True, **asked)
    last = list(events)[-1].response.output
    for output in (given, last):
        call = output[-1].to_dict()
        assert (call["type"], call["namespace"], call["name"]) == ("function_call", space, "clock")
    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "noon"}
    back = [{"role": "user", "content": "what time is it?"}, call, answer]
    again = client.responses.create(input=back, **{**asked, "max_output_tokens": 2})
    assert again.usage.output_tokens == 2
    plain = client.responses.create(
        input="hi", **{**asked, "tool_choice": {**chosen, "namespace": None}}
    )
    assert "namespace" not in plain.output[-1].to_dict()


def test_a_model_without_tools_refuses_them(served_bundle):
    with LLM(served_bundle, draft="none", **PLACE) as llm, serving(llm) as running:
        response = running.post({"messages": MESSAGES, "tools": TOOLS}, CHAT)
        refused(response, 400, "knows no tools")
        body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "none", "max_tokens": 1}
        assert httpx.post(running.url + CHAT, json=body).status_code == 200


def test_the_openai_client_parses_calls(client):
    class Weather(pydantic.BaseModel):
        city: Literal["Rome", "Oslo"]

    given = client.chat.completions.parse(
        model=MODEL,
        messages=MESSAGES,
        seed=5,
        max_tokens=200,
        tool_choice="required",
        tools=[openai.pydantic_function_tool(Weather)],
        parallel_tool_calls=False,
    )
    [call] = given.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)


# In the words of other APIs


FUNCTIONS = [{"type": "function", **tool["function"]} for tool in TOOLS]
ITEMS = {"tools": FUNCTIONS, "tool_choice": "required", "parallel_tool_calls": False}


def test_a_response_has_calls(client):
    given = client.responses.create(model=MODEL, input="hello", extra_body={"seed": 1}, **ITEMS)
    [call] = given.output
    assert (given.status, call.type, call.status) == ("completed", "function_call", "completed")
    right = asked(client, tool_choice="required", parallel_tool_calls=False, seed=1)
    [same] = right.choices[0].message.tool_calls
    assert (call.name, call.arguments) == (same.function.name, same.function.arguments)
    done = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items = [{"role": "user", "content": "hello"}, call.to_dict(), done]
    ended = client.responses.create(model=MODEL, input=items, tools=FUNCTIONS, max_output_tokens=2)
    assert ended.usage.output_tokens == 2
    assert ended.usage.input_tokens > given.usage.input_tokens


def test_a_response_streams_calls(client):
    choice = {"type": "function", "name": "get_weather"}
    asking = {"model": MODEL, "input": "hello", **ITEMS, "tool_choice": choice}
    events = list(client.responses.create(**asking, stream=True, extra_body={"seed": 1}))
    [whole] = client.responses.create(**asking, extra_body={"seed": 1}).output
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == whole.arguments
    assert events[-1].type == "response.completed"
    assert events[-1].response.output[0].arguments == whole.arguments


def test_it_is_told_what_the_model_can_do(running, reasoning):
    (model,) = httpx.get(f"{running.url}/v1/models").json()["data"]
    assert model["capabilities"] == ["completion", "chat", "tools"]
    shown = reasoning.post({"model": MODEL}, "/api/show").json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]


# Calls that a model writes without marks, and JSON that is none


ARGUMENTS = '{"city": "Rome", "days": 2}'
BARE = f'```json\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n```'
OTHER = '{"name": "get_wind", "arguments": {"city": "Rome"}}'


def test_a_call_without_marks_comes_as_a_call(client, monkeypatch):
    write(monkeypatch, BARE)
    [choice] = asked(client, max_tokens=200).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    [call] = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", ARGUMENTS)
    chunks = list(asked(client, max_tokens=200, stream=True))
    pieces = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or ()]
    assert (pieces[0].index, pieces[0].function.name) == (0, "get_weather")
    assert "".join(each.function.arguments for each in pieces) == ARGUMENTS
    assert len(pieces) > 3
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_json_that_is_no_call_comes_as_text(client, monkeypatch):
    write(monkeypatch, OTHER)
    [choice] = asked(client, max_tokens=200).choices
    assert (choice.finish_reason, choice.message.content) == ("stop", OTHER)
    assert choice.message.tool_calls is None
    deltas = [chunk.choices[0].delta for chunk in asked(client, max_tokens=200, stream=True)]
    assert "".join(delta.content or "" for delta in deltas) == OTHER
    assert sum(bool(delta.content) for delta in deltas) > 3
    assert not any(delta.tool_calls for delta in deltas)


def test_a_call_that_begins_without_marks_is_held_to_its_schema(client, monkeypatch):
    write(monkeypatch, BARE.replace("Rome", "Constantinople").replace("2", "0"))
    for seed in range(3):
        [choice] = asked(client, max_tokens=200, seed=seed).choices
        [call] = choice.message.tool_calls
        found = json.loads(call.function.arguments)
        assert found["city"].startswith("Constant")
        jsonschema.validate(found, WEATHER["function"]["parameters"])
