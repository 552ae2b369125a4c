"""Tools of MCP servers on the page: offered, asked about, called by the server and shown."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import chromium
import httpx
import psutil
import pytest
from chats import template
from commandline import FAST, fails
from pages import ANSWER, IDLE, click, opened, say
from pairs import with_eos
from scripts import write
from servers import PLACE, make_bundle, refused, serving, started, until
from tool_servers import ODD, program

from edgespec import LLM
from edgespec.mcp.connections import Connection
from edgespec.mcp.entries import ServerEntry
from edgespec.mcp.toolbox import Toolbox

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
SAID = "talk.nodes.map(({message}) => `${message.role} ${message.content}`)"
ASKED = "document.querySelector('.results')?.textContent.startsWith('Call weather?')"
OWN = {"sec-fetch-site": "same-origin"}
BODY = {"name": "weather", "arguments": {"city": "Rome"}}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    made = make_bundle(folder, template("hermes"), max_position_embeddings=4096)
    with LLM(with_eos(made, folder / "ending", 0), draft="none", **PLACE) as llm:
        yield llm


def server(mode, *allowed):
    command = (sys.executable, str(ODD), mode)
    return Connection(ServerEntry("sky", command, allowed=frozenset(allowed)), call_seconds=60)


@pytest.fixture
def running(llm, request):
    """A server with tools of one server of tools, in a mode, and the names that it allows."""
    mode, *allowed = getattr(request, "param", ["plain"])
    with Toolbox([server(mode, *allowed)]) as box, serving(llm, toolbox=box) as running:
        yield running


@pytest.fixture
def page(running, tmp_path):
    with opened(running, tmp_path) as page:
        page.until("served?.length")
        yield page


def test_the_page_alone_has_tools_called(running):
    url = f"{running.url}/tools"
    [tool] = httpx.get(url, headers=OWN).json()["tools"]
    assert (tool["function"]["name"], tool["server"], tool["allowed"]) == ("weather", "sky", False)
    assert httpx.get(url).status_code == 200
    assert running.post(BODY, "/tools/call", **OWN).json() == {
        "text": "18 °C",
        "images": [],
        "failed": False,
    }
    origin = {"origin": running.url}
    assert running.post(BODY, "/tools/call", **origin).status_code == 200
    for headers in (
        {},
        {"sec-fetch-site": "cross-site", **origin},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://other.example"},
        {"origin": "null"},
    ):
        refused(running.post(BODY, "/tools/call", **headers), 403, "the page of this server alone")
    refused(httpx.get(url, headers={"sec-fetch-site": "cross-site"}), 403, "alone")


def test_other_sites_that_may_use_the_server_may_not_call_tools(llm):
    other = "http://other.example"
    with Toolbox([server("plain")]) as box:
        with serving(llm, origins=["*"], toolbox=box) as running:
            headers = {"origin": other, "sec-fetch-site": "cross-site"}
            refused(running.post(BODY, "/tools/call", **headers), 403, "alone")
            refused(running.post(BODY, "/tools/call", origin=other), 403, "alone")
        with serving(llm, api_key="secret", toolbox=box) as running:
            refused(running.post(BODY, "/tools/call", **OWN), 401, "API key")
            assert httpx.get(f"{running.url}/tools", headers=OWN).status_code == 401


def test_wrong_calls_are_refused(running):
    refused(
        running.post({**BODY, "name": "no"}, "/tools/call", **OWN), 404, "there is no tool 'no'"
    )
    refused(running.post({"name": "weather"}, "/tools/call", **OWN), 400, "arguments is missing")


@pytest.mark.parametrize("running", [["dies"]], indirect=True)
def test_a_server_that_dies_is_named_to_the_model(running):
    found = running.post(BODY, "/tools/call", **OWN).json()
    assert found["failed"]
    assert "The call has failed: the MCP server sky gives no answer" in found["text"]


def test_without_servers_there_are_no_tools(llm):
    with serving(llm) as running:
        assert httpx.get(f"{running.url}/tools").json() == {"tools": [], "most_calls": 0}
        refused(running.post(BODY, "/tools/call", **OWN), 404, "there is no tool")


@pytest.fixture
def servers_file(tmp_path):
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"sky": program(autoApprove=["*"])}}))
    return file


def test_a_server_that_others_can_reach_needs_a_key(cli, served_bundle, servers_file):
    words = ["serve", served_bundle, *FAST, "--port", "0", "--mcp", servers_file]
    fails(cli(*words, "--host", "0.0.0.0"), "could call the tools of --mcp: set --api-key")


@pytest.mark.skipif(sys.platform == "win32", reason="it has no SIGTERM")
def test_the_command_starts_and_ends_servers_of_tools(served_bundle, servers_file):
    words = ["serve", served_bundle, *FAST, "--port", "0", "--mcp", servers_file]
    command = [sys.executable, "-m", "edgespec", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        _, url = started(process)
        [tool] = httpx.get(f"{url}/tools").json()["tools"]
        assert tool["allowed"]
        [child] = psutil.Process(process.pid).children()
        process.terminate()
        assert process.wait(60) in (0, -signal.SIGTERM)
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


@chromium.needed
@pytest.mark.slow
def test_the_page_asks_and_goes_on(page, monkeypatch):
    write(monkeypatch, CALL, "fine")
    say(page, "hello", tokens=200)
    page.until(ASKED)
    assert page.run(f"{ANSWER}.querySelector('details.call').open")
    assert page.run("document.activeElement.textContent") == "Call"
    click(page, "Call")
    page.until(f"{SAID}.length === 4 && {IDLE}")
    assert page.run(SAID) == ["user hello", "assistant ", "tool 18 °C", "assistant fine"]
    shown = "document.querySelector('article.user details')"
    assert page.run(f"{shown}.querySelector('summary').textContent") == "Result of weather: 18 °C"
    assert not page.run(f"{shown}.open")


@chromium.needed
@pytest.mark.slow
def test_what_is_not_allowed_is_not_called_and_what_is_always_allowed_is(page, monkeypatch):
    write(monkeypatch, CALL, "one", CALL, "two", CALL, "three")
    for number, choice in enumerate(["Don't call", "Always call", None]):
        say(page, "hello", tokens=200)
        if choice:
            page.until(ASKED)
            click(page, choice)
        page.until(f"{SAID}.length === {4 * number + 4} && {IDLE}")
    results = page.run(f"{SAID}.filter((each) => each.startsWith('tool'))")
    assert results == [
        "tool It was not called: the user does not allow it.",
        *["tool 18 °C"] * 2,
    ]


@chromium.needed
@pytest.mark.slow
@pytest.mark.parametrize("running", [["plain", "weather"]], indirect=True)
def test_calls_end_behind_a_number_of_them(page, monkeypatch):
    write(monkeypatch, CALL)
    page.run("mostCalls = 3")
    say(page, "hello", tokens=200)
    page.until(f"{SAID}.length === 8 && {IDLE}")
    assert page.run("talk.nodes.at(-1).message.tool_calls") is None
    assert page.run("talk.nodes.filter(({message}) => message.role === 'tool').length") == 3


@chromium.needed
@pytest.mark.slow
@pytest.mark.parametrize("running", [["hangs", "weather"]], indirect=True)
def test_a_call_can_be_stopped_and_is_not_made_again_by_a_reload(page, monkeypatch):
    write(monkeypatch, CALL)
    say(page, "hello", tokens=200)
    page.until("document.getElementById('facts').textContent.startsWith('weather is called')")
    page.reload()
    page.until(ASKED)
    click(page, "Call")
    page.until("document.getElementById('facts').textContent.startsWith('weather is called')")
    click(page, "Stop")
    page.until(IDLE)
    assert page.run(SAID)[-1] == "tool The user has stopped the call."


@chromium.needed
@pytest.mark.slow
def test_a_tool_can_be_left_out(page):
    assert page.run("offeredTools(talk, null).tools.length") == 1
    box = "document.querySelector('#served-tools input')"
    page.run(f"{box}.click()")
    assert page.run("offeredTools(talk, null).tools") is None
    assert json.loads(page.run("localStorage.getItem(TOOLS_OFF)")) == ["weather"]
