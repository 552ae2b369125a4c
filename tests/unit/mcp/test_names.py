"""Names by which models call tools."""

from __future__ import annotations

import re

from edgespec.mcp.names import model_names


def test_names_stay_or_are_mended():
    given = [("a", "read_file"), ("a", "fs.read"), ("b", "lire/écrire"), ("b", ""), ("b", "x-y")]
    assert model_names(given) == ["read_file", "fs_read", "lire_crire", "tool", "x-y"]


def test_the_server_goes_before_a_name_that_two_have():
    given = [("my files", "read"), ("web", "read"), ("web", "write")]
    assert model_names(given) == ["my_files_read", "web_read", "write"]


def test_every_name_is_short_plain_and_of_one_tool():
    given = [("s" * 100, "n" * 5000)] * 3 + [("s", "\x1b[2J"), ("s", "2J"), ("s", "s_2J")]
    names = model_names(given)
    assert len({*names}) == len(given)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
