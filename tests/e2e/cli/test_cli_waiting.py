"""What a terminal shows until a command has something to print."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from commandline import FAST
from servers import make_bundle
from terminals import Terminal

from edgespec.cli.waiting import notice, waiting


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("waiting"))


@pytest.mark.skipif(sys.platform == "win32", reason="has no pseudo-terminals")
def test_a_terminal_tells_at_once_that_something_happens(bundle):
    """Each line is gone when the next thing is shown."""
    chat = Terminal("", bundle, "-n", "4", *FAST)
    for text in (
        "edgespec starts …",
        r"\r {17,}\r",
        "the model is loaded …",
        r"\r {21,}\r",
        "/help",
    ):
        chat.until(text)
    chat.close()


def test_a_line_that_stays_lives(capsys, monkeypatch):
    """It counts seconds, or says what it is told anew, until something else is printed."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.modules["edgespec.cli.waiting"], "_TICK", 0.25)
    with waiting("it loads"):
        time.sleep(0.6)
        shown = capsys.readouterr().err
        assert shown.startswith("it loads …\r          \rit loads … 0.25 s")
        notice("a line")
        assert capsys.readouterr().err.endswith("\ra line\n")
        time.sleep(0.6)
        assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.modules["edgespec.cli.waiting"], "_TICK", 0.05)
    numbers = iter(range(1000))
    with waiting(lambda: f"{next(numbers)}", delay=0.05):
        assert capsys.readouterr().err == ""
        time.sleep(0.3)
    assert capsys.readouterr().err.startswith("0 …\r   \r1 …\r   \r2 …")


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
