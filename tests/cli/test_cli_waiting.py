"""What a terminal shows until a command has something to print."""

from __future__ import annotations

import subprocess
import sys

import pytest
from commandline import FAST
from servers import make_bundle
from terminals import Terminal

from edgespec.cli.waiting import waiting


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("waiting"))


@pytest.mark.skipif(sys.platform == "win32", reason="has no pseudo-terminals")
def test_a_terminal_tells_at_once_that_something_happens(bundle):
    """Each line is gone when the next thing is shown."""
    chat = Terminal("", bundle, "-n", "4", *FAST)
    for text in ("edgespec starts …", "\r {17}\r", "the model is loaded …", "\r {21}\r", "/help"):
        chat.until(text)
    chat.close()


def test_nothing_heavy_is_imported_before():
    code = (
        "import sys, edgespec.cli; heavy = {'numpy', 'onnxruntime', 'tokenizers', 'rich'}; "
        "print(heavy & sys.modules.keys())"
    )
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=True)
    assert found.stdout.split() == [b"set()"]


def test_nothing_is_shown_where_nobody_looks(capsys):
    with waiting("the model is loaded"):
        pass
    assert capsys.readouterr().err == ""


def test_a_line_takes_the_place_of_another(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with waiting("it waits"):
        assert capsys.readouterr().err == "it waits …"
        with waiting("it loads"):
            assert capsys.readouterr().err == "\r          \rit loads …"
    assert capsys.readouterr().err == "\r          \r"
