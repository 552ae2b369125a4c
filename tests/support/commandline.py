"""Shared parts of the tests of the command line; fixtures are in conftest."""

from __future__ import annotations

PLACE = {"device": "cpu", "draft_device": "cpu", "threads": 1}
FAST = ["--device=cpu", "--draft-device=cpu", "--threads=1"]
PROMPT = "def fibonacci(n):\n"


def fails(result, *parts, code=2):
    """Check for one or two lines that say what is wrong, and nothing on stdout."""
    assert result.code == code
    assert result.out == ""
    assert result.err.startswith("edgespec: ")
    assert 1 <= len(result.err.splitlines()) <= 2
    for part in ("", *parts):
        assert part in result.err
    assert "Traceback" not in result.err
