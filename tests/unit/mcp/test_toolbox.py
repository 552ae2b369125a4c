"""Servers of tools: what they are asked, and what models read of it."""

from __future__ import annotations

import sys

import pytest
from tool_servers import HONEST, listening

from edgespec.errors import InputError, ToolServerError
from edgespec.mcp.connections import Connection
from edgespec.mcp.entries import ServerEntry
from edgespec.mcp.results import ToolResult
from edgespec.mcp.toolbox import Toolbox

MOST = 1000


def entry(name="weather", **more):
    return ServerEntry(name, (sys.executable, str(HONEST)), {"ANSWER": "42"}, **more)


@pytest.fixture(scope="module")
def box():
    allowed = frozenset({"read.env"})
    with Toolbox([Connection(entry(allowed=allowed, disabled_tools=frozenset({"fail"})))]) as box:
        yield box


def test_tools_are_described_for_models(box):
    assert list(box.tools) == ["weather", "read_env", "numbers", "everything"]
    tool = box.tools["weather"]
    assert tool.described["function"]["description"] == "Tell the weather of a city."
    assert tool.described["function"]["parameters"]["required"] == ["city"]
    assert [each.is_allowed for each in box.tools.values()] == [False, True, False, False]


def test_calls(box):
    assert box.call("weather", {"city": "Rome"}, MOST).result() == ToolResult("18 °C in Rome")
    assert box.call("read_env", {"name": "ANSWER"}, MOST).result().text == "42"
    with pytest.raises(InputError, match="there is no tool climate"):
        box.call("climate", {}, MOST)


def test_a_wrong_call_is_told_to_the_model(box):
    found = box.call("weather", {"town": "Rome"}, MOST).result()
    assert found.failed
    assert "city" in found.text


def test_a_long_result_is_cut(box):
    found = box.call("numbers", {"most": 1000}, 10).result()
    assert found.text.startswith("0\n1\n2\n3\n4\n\n[")
    assert "further characters are left out" in found.text


def test_parts_of_all_kinds(box):
    found = box.call("everything", {}, MOST).result()
    text, image = found.content(sees_images=True)
    assert "a text" in text["text"]
    assert "audio/wav is left out" in text["text"]
    assert "[notes, at file:///notes.txt: what was noted]" in text["text"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert "images that this model cannot see: 1" in found.content(sees_images=False)
    assert ToolResult("").content(sees_images=True) == "The tool has returned nothing."


def test_the_environment_of_this_process_is_not_passed_on(box, monkeypatch):
    assert box.call("read_env", {"name": "EDGESPEC_CACHE"}, MOST).result().text == "none"


def test_two_servers_with_the_same_tools_one_of_them_at_an_address():
    with (
        listening() as url,
        Toolbox([Connection(entry()), Connection(ServerEntry("far", url=url))]) as box,
    ):
        assert {"weather_weather", "far_weather"} <= {*box.tools}
        for name in ("weather_weather", "far_weather"):
            assert box.call(name, {"city": "Oslo"}, MOST).result().text == "18 °C in Oslo"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (ServerEntry("gone", ("no-such-program",)), "gone cannot be used .there is no program no-"),
        (ServerEntry("gone", url="http://127.0.0.1:1/mcp"), "gone cannot be used"),
    ],
)
def test_a_server_that_is_not_there_is_named(wrong, reason):
    with pytest.raises(ToolServerError, match=reason):
        Toolbox([Connection(wrong)])
