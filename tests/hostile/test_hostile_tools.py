"""Servers of tools that do not keep to the protocol end in an error that names them."""

from __future__ import annotations

import gzip
import http.server
import sys
import threading

import psutil
import pytest
from tool_servers import ODD

from edgespec.errors import ToolServerError
from edgespec.mcp.connections import MOST_TOOLS, Connection
from edgespec.mcp.entries import ServerEntry
from edgespec.mcp.processes import MOST_BYTES
from edgespec.mcp.toolbox import Toolbox

MOST = 1000
SOON = 0.5  # seconds


def opened(mode, start=60.0, call=60.0):
    entry = ServerEntry("odd", (sys.executable, str(ODD), mode))
    return Toolbox([Connection(entry, start, call)])


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("endless list", f"more than {MOST_TOOLS} tools"),
        ("many tools", f"more than {MOST_TOOLS} tools"),
        ("no list", "does not keep to MCP .tools:"),
        ("ends at once", "it has ended: no such database"),
        ("only rubbish", "writes to stdout what is no message"),
    ],
)
def test_servers_that_cannot_be_used(mode, reason):
    with pytest.raises(ToolServerError, match=reason) as error:
        opened(mode)
    assert "the MCP server odd" in str(error.value)


def test_a_server_that_never_starts():
    with pytest.raises(ToolServerError, match=r"has not started within 0\.5 s"):
        opened("never starts", start=SOON)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("dies", "gives no answer .it has ended: out of coffee"),
        ("huge message", "it has sent more than 8 MiB at once"),
        ("rubbish result", "does not keep to MCP .content.0"),
        ("refuses", r"refuses: not \\x1b\[2Jtoday"),
    ],
)
def test_calls_that_fail_name_the_server_and_the_next_one_begins_anew(mode, reason):
    with opened(mode) as box:
        for _ in range(2):
            with pytest.raises(ToolServerError, match=reason) as error:
                box.call("weather", {}, MOST).result()
            assert "the MCP server odd" in str(error.value)


def test_a_call_that_hangs():
    with opened("hangs", call=SOON) as box:
        with pytest.raises(ToolServerError, match=r"has not answered within 0\.5 s"):
            box.call("weather", {}, MOST).result()
        waiting = box.call("weather", {}, MOST)
        assert waiting.cancel()


def test_huge_and_many_results_are_cut():
    with opened("huge text") as box:
        assert len(box.call("weather", {}, MOST).result().text) < MOST + 100
    with opened("many images") as box:
        found = box.call("weather", {}, MOST).result()
        assert len(found.images) == 8
        assert "further images, left out: 12" in found.text


def test_some_rubbish_is_passed_over():
    with opened("some rubbish") as box:
        assert box.call("weather", {}, MOST).result().text == "18 °C"


def test_odd_names_become_plain_ones():
    with opened("odd names") as box:
        assert len(box.tools) == 8
        assert all(name.isascii() and name.isprintable() for name in box.tools)


def test_a_schema_that_is_too_large_leaves_out_its_tool_alone(caplog):
    with opened("large schema") as box:
        assert list(box.tools) == ["weather1"]
    assert "a tool of odd is left out: tool weather0" in caplog.text


def test_no_program_stays_behind():
    with opened("stays") as box:
        process = psutil.Process(int(box.call("weather", {}, MOST).result().text))
        assert process.is_running()
    assert not process.is_running()


class _Answers(http.server.BaseHTTPRequestHandler):
    headers_of_answer = ()
    body = b""

    def do_POST(self):
        self.send_response(200)
        for name, value in self.headers_of_answer:
            self.send_header(name, value)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        ({"content-type": "application/json"}, b"[" + b"1," * MOST_BYTES, "cannot"),
        (
            {"content-type": "text/event-stream"},
            b"data: " + b"x" * 2 * MOST_BYTES + b"\n\n",
            "cannot",
        ),
        (
            {"content-type": "application/json", "content-encoding": "gzip"},
            gzip.compress(b" " * 4 * MOST_BYTES),
            "it compresses its answers",
        ),
        ({"content-type": "text/html"}, b"<p>", "text/html"),
        ({"content-type": "application/json"}, b"{", "cannot"),
    ],
)
def test_addresses_that_are_no_server(headers, body, reason):
    answers = type("", (_Answers,), {"headers_of_answer": tuple(headers.items()), "body": body})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), answers) as server:
        server.handle_error = lambda *_: None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/mcp"
        with pytest.raises(ToolServerError, match=reason) as error:
            Toolbox([Connection(ServerEntry("odd", url=url))])
        assert "the MCP server odd" in str(error.value)
        server.shutdown()
