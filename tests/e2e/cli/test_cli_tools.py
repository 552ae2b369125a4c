"""`edgespec chat --mcp`: calls of tools are asked about, made, and shown in a line."""

from __future__ import annotations

import json
import sys

import pytest
from chats import template
from commandline import FAST, fails
from pairs import with_eos
from scripts import write
from servers import make_bundle
from tool_servers import program

ASKS = {"role": "user", "content": "hello"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
SHOWN = 'weather(city="Rome")'
RESULT = "18 °C"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    made = make_bundle(folder, template("hermes"), max_position_embeddings=4096)
    return with_eos(made, folder / "ending", 0)


@pytest.fixture
def servers(tmp_path):
    """Write a file of one server."""

    def servers(**more):
        file = tmp_path / "servers.json"
        file.write_text(json.dumps({"mcpServers": {"sky": program(**more)}}))
        return file

    return servers


@pytest.fixture
def chat(cli, bundle, tmp_path):
    """Chat with a model; returns what came, and the conversation that was saved."""

    def chat(servers, *lines, asked=False):
        file = tmp_path / "talk.json"
        stdin = "".join(f"{line}\n" for line in [*lines, f"/save {file}"]).encode()
        words = ["chat", bundle, *FAST, "-n", "200", "--draft", "none", "--mcp", servers]
        result = cli(*words, stdin=stdin, terminal=asked)
        assert result.code == 0, result.err
        return result, json.loads(file.read_text("utf-8"))

    return chat


def test_a_tool_that_is_allowed_is_called_and_the_model_goes_on(chat, servers, monkeypatch):
    write(monkeypatch, CALL, "fine")
    result, talk = chat(servers(alwaysAllow=["weather"]), "hello", "/last")
    asks, calls, found, answer = talk
    assert asks == ASKS
    assert calls["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": '{"city": "Rome"}',
    }
    assert found["content"] == RESULT
    assert found["tool_call_id"] == calls["tool_calls"][0]["id"]
    assert answer["content"] == "fine"
    assert result.out == "fine\n"
    assert f"{SHOWN} → {RESULT}" in result.err
    assert f"{SHOWN}\n{RESULT}" in result.err


def test_nothing_is_called_without_a_terminal_unless_it_is_allowed(chat, servers, monkeypatch):
    write(monkeypatch, CALL, "sorry")
    result, talk = chat(servers(alwaysAllow=["other"]), "hello", "/tools")
    assert talk[2]["content"] == "It was not called: the user has not allowed it."
    assert "weather is not called, since nobody can be asked: name it in alwaysAllow" in result.err
    assert "weather (asks), of sky: Tell the weather.\n" in result.err


def test_a_user_is_asked_and_may_allow_a_tool_for_good(chat, servers, monkeypatch):
    write(monkeypatch, CALL, "one", CALL, "two", CALL, "three")
    lines = ["hello", "perhaps", "n", "hello", "always", "hello", "/tools"]
    result, talk = chat(servers(), *lines, asked=True)
    assert result.out.count(f"Call {SHOWN}? [y]es / [n]o / [a]lways ") == 3
    results = [each["content"] for each in talk if each["role"] == "tool"]
    assert results == ["It was not called: the user does not allow it.", RESULT, RESULT]
    assert "weather, of sky" in result.err


def test_what_a_saved_conversation_has_of_tools_goes_on(cli, bundle, chat, servers, monkeypatch):
    write(monkeypatch, CALL, "fine")
    file = servers(alwaysAllow=["*"])
    chat(file, "hello")
    words = ["chat", bundle, *FAST, "-n", "9", "--mcp", file]
    history = file.with_name("talk.json")
    markdown = file.with_name("talk.md")
    result = cli(*words, "--history", history, stdin=f"so?\n/save {markdown}\n".encode())
    assert result.code == 0, result.err
    assert 'Calls weather: `{"city": "Rome"}`' in markdown.read_text("utf-8")
    assert f"## Tool\n\n{RESULT}" in markdown.read_text("utf-8")


def test_calls_end_behind_a_number_of_them(chat, servers, monkeypatch):
    monkeypatch.setattr("edgespec.cli.tool_calls.MOST_CALLS", 3)
    write(monkeypatch, CALL)
    _, talk = chat(servers(alwaysAllow=["*"]), "hello")
    assert [each["role"] for each in talk] == ["user", *["assistant", "tool"] * 3, "assistant"]
    assert "tool_calls" not in talk[-1]


def test_a_server_that_dies_is_named_and_the_conversation_goes_on(chat, servers, monkeypatch):
    write(monkeypatch, CALL, "sorry")
    _, talk = chat(servers(mode="dies", autoApprove=["*"]), "hello")
    assert "The call has failed: the MCP server sky gives no answer" in talk[2]["content"]
    assert talk[3]["content"] == "sorry"


def test_a_result_that_no_model_can_read_is_left_behind(chat, servers, monkeypatch):
    write(monkeypatch, CALL, "fine")
    damaged = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    monkeypatch.setattr("edgespec.mcp.results.ToolResult.content", lambda *_: damaged)
    result, talk = chat(servers(alwaysAllow=["*"]), "hello", "are you there?")
    assert "image" in result.err
    assert [each["content"] for each in talk] == ["are you there?", "fine"]


def test_what_cannot_be_used_is_one_line(cli, bundle, servers, served_bundle, monkeypatch):
    words = ["chat", bundle, *FAST, "--mcp"]
    fails(cli(*words, servers(command="no-such-program")), "sky", "no program no-such-program")
    fails(cli(*words, bundle / "none.json"), "none.json")
    fails(cli("chat", served_bundle, *FAST, "--mcp", servers()), "template knows no tools")
    monkeypatch.setitem(sys.modules, "mcp", None)
    for name in [each for each in sys.modules if each.startswith("edgespec.mcp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "edgespec.cli.tool_calls", raising=False)
    fails(cli(*words, servers()), "need the package mcp", 'pip install ".[mcp]"')


def test_without_servers_there_are_no_tools(cli, bundle):
    result = cli("chat", bundle, *FAST, stdin=b"/tools\n/last\n")
    assert result.err.count("there are no tools: start the chat with --mcp FILE") == 2
