"""Files with `mcpServers`, as other programs take them."""

from __future__ import annotations

import json

import pytest

from edgespec.errors import InputError
from edgespec.mcp.entries import ServerEntry, read_entries


@pytest.fixture
def read(tmp_path):
    def read(servers, place="mcpServers"):
        file = tmp_path / "servers.json"
        file.write_text(json.dumps({place: servers}))
        return read_entries(file)

    return read


def test_programs_and_addresses(read, monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.delenv("NONE", raising=False)
    found = read(
        {
            "files": {
                "type": "stdio",
                "command": "npx",
                "args": ["-y", "${NONE:-server}", "/tmp"],
                "env": {"KEY": "${env:TOKEN}"},
                "cwd": "/",
                "alwaysAllow": ["read"],
                "disabledTools": ["write"],
            },
            "web": {
                "url": "https://a.example/mcp",
                "headers": {"authorization": "Bearer ${TOKEN}"},
            },
            "off": {"command": "x", "disabled": True},
        }
    )
    assert found == [
        ServerEntry(
            "files",
            ("npx", "-y", "server", "/tmp"),
            {"KEY": "secret"},
            "/",
            allowed=frozenset({"read"}),
            disabled_tools=frozenset({"write"}),
        ),
        ServerEntry("web", url="https://a.example/mcp", headers={"authorization": "Bearer secret"}),
    ]
    assert found[0].allows("read")
    assert not found[0].allows("write")


def test_all_tools_of_a_server_may_be_allowed(read):
    [entry] = read({"a": {"command": "b", "autoApprove": ["*"]}}, place="servers")
    assert entry.allows("anything")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({}, "neither command nor url: give one"),
        ({"command": "a", "url": "http://b"}, "both command and url"),
        ({"command": ["a"]}, "give a text"),
        ({"command": "a", "args": "b"}, "give a list of texts"),
        ({"command": "a", "args": [1]}, "args 1: give a text"),
        ({"command": "a", "env": ["b"]}, "give an object of texts"),
        ({"command": "a", "env": {"B": 1}}, "env.B 1: give a text"),
        ({"command": "a", "env": {"B": "${NONE}"}}, "set NONE in the environment"),
        ({"url": "a.example"}, "begin it with https://"),
        ({"url": "http://b", "type": "sse"}, "the address of its streamable HTTP"),
        (None, "give an object with command or url"),
    ],
)
def test_wrong_entries_are_named(read, monkeypatch, entry, reason):
    monkeypatch.delenv("NONE", raising=False)
    with pytest.raises(InputError, match="the MCP server odd") as error:
        read({"odd": entry})
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "has no mcpServers"),
        ("3", "has no mcpServers"),
        ("{}", "has no mcpServers"),
        ('{"mcpServers": []}', "has no mcpServers"),
        ('{"mcpServers": {}}', "no server that is enabled"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, reason):
    file = tmp_path / "servers.json"
    file.write_text(text)
    with pytest.raises(InputError, match=reason):
        read_entries(file)
