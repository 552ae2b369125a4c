"""Names of tools as MCP has them, on every route and in every form."""

from __future__ import annotations

import pytest
from chats import FORMS, WEATHER, Chat, template
from pairs import with_eos
from scripts import write
from servers import MODEL, PLACE, make_bundle, refused, serving

from edgespec import LLM

NAMES = ["math.add", "mcp_server_" + "x" * 117, "a", "0.-_", "get_weather.v2"]
MESSAGES = [{"role": "user", "content": "hello"}]


def tool(name):
    return {"type": "function", "function": {**WEATHER["function"], "name": name}}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_writes_and_reads_such_a_name(form, tmp_path):
    chat = Chat(tmp_path, template(form), FORMS[form].tokens)
    for name in NAMES:
        text = FORMS[form].call.replace("get_weather", name)
        options = {"tools": [tool(name), tool("get_weather")]}
        assert chat.accepted(text, **options) == (text, True)
        assert chat.read(text, 3, **options)[1] == [(name, {"city": "Rome", "days": 2})]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    path = with_eos(make_bundle(folder, template("hermes")), folder / "ending", 0)
    with LLM(path, draft="lookup", **PLACE) as llm, serving(llm) as running:
        yield running


@pytest.mark.parametrize("name", ["math.add", "mcp_server_" + "x" * 60])
def test_every_route_takes_such_a_name(running, monkeypatch, name):
    write(monkeypatch, FORMS["hermes"].call.replace("get_weather", name))
    body = {"model": MODEL, "messages": MESSAGES, "tools": [tool(name)], "stream": False}
    chosen = {"type": "function", "function": {"name": name}}
    [choice] = running.post({**body, "tool_choice": chosen}, "/v1/chat/completions").json()[
        "choices"
    ]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == name
    message = running.post(body, "/api/chat").json()["message"]
    assert message["tool_calls"][0]["function"]["name"] == name
    flat = {"type": "function", **tool(name)["function"]}
    items = {"model": MODEL, "input": "hello", "tools": [flat]}
    choice = {"type": "function", "name": name}
    [call] = running.post({**items, "tool_choice": choice}, "/v1/responses").json()["output"]
    assert call["name"] == name


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "é", 'a"b'])
def test_other_names_are_refused(running, name):
    body = {"model": MODEL, "messages": MESSAGES, "tools": [tool(name)]}
    refused(running.post(body, "/v1/chat/completions"), 400, "tools.0.function.name is ")
