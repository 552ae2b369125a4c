"""`edgespec chat` in a terminal: what is typed, and what is pasted."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time

import pytest
from commandline import FAST
from servers import make_bundle

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="terminals of POSIX")

PATIENCE = 60  # seconds
CODE = "import sys; {before}from edgespec.cli import main; sys.exit(main())"
# As a Python without line editing, and one whose readline knows no pastes.
PLAIN = "sys.modules['readline'] = None; "
LIBEDIT = "import types; sys.modules['readline'] = types.ModuleType('readline', 'libedit'); "


class Terminal:
    """A chat at a terminal of its own."""

    def __init__(self, before, *arguments):
        pty = pytest.importorskip("pty")
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", CODE.format(before=before), "chat", *map(str, arguments)],
            stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"},
        )  # fmt: skip
        os.close(theirs)
        self._seen = 0
        self.shown = ""

    def until(self, pattern):
        """Wait for what is shown after all that was waited for."""
        end = time.monotonic() + PATIENCE
        while (found := re.compile(pattern).search(self.shown, self._seen)) is None:
            assert select.select([self._ours], [], [], end - time.monotonic())[0], self.shown
            self.shown += os.read(self._ours, 4096).decode()
        self._seen = found.end()

    def type(self, text):
        os.write(self._ours, text.encode())

    def leave(self):
        self.type("/exit\r")
        assert self._process.wait(PATIENCE) == 0

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("typed"))


@pytest.fixture
def chat(bundle):
    """Begin one, wait for its first prompt."""
    begun = []

    def begin(before=""):
        begun.append(Terminal(before, bundle, *FAST, "-n", 3, "--draft", "none"))
        begun[-1].until("/help shows")
        begun[-1].until("> ")
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


def heard(terminal, tmp_path):
    """What the user has said, message by message."""
    file = tmp_path / "talk.json"
    terminal.type(f"/save {file}\r")
    terminal.until("messages to")
    terminal.leave()
    messages = json.loads(file.read_text("utf-8"))
    return [each["content"] for each in messages if each["role"] == "user"]


@pytest.fixture
def brackets():
    """Python's line editing, if it knows what a paste is."""
    readline = pytest.importorskip("readline")
    if "libedit" in readline.__doc__:
        pytest.skip("libedit knows no pastes")


def pasted(text, marked):
    """As a terminal sends it, and Enter."""
    text = text.replace("\n", "\r")
    return f"\x1b[200~{text}\x1b[201~\r" if marked else f"{text}\r"


@pytest.fixture(params=["marked", "unmarked"])
def marked(request):
    """Whether the terminal is asked to mark what is pasted."""
    if request.param == "marked":
        request.getfixturevalue("brackets")
    return request.param == "marked"


TEXT = "/usr/bin is\n\n    a folder\n/exit"


def test_what_is_pasted_is_one_message(brackets, chat, tmp_path):
    terminal = chat()
    assert "\x1b[?2004h" in terminal.shown  # the terminal is asked to mark it
    terminal.type(pasted(TEXT + "\n", True))
    terminal.until("stopped after 3 tokens")
    terminal.until("> ")
    assert heard(terminal, tmp_path) == [TEXT]


def test_what_is_typed_ahead_is_not_a_paste(brackets, chat, tmp_path):
    terminal = chat()
    terminal.type("one\rtwo\r")
    for _ in range(2):
        terminal.until("stopped after 3 tokens")
    terminal.until("> ")
    assert heard(terminal, tmp_path) == ["one", "two"]


@pytest.mark.parametrize("before", [PLAIN, LIBEDIT], ids=["plain", "libedit"])
def test_without_marks_lines_that_come_together_are_one_message(chat, tmp_path, before):
    terminal = chat(before)
    assert "\x1b[?2004h" not in terminal.shown
    for text in (TEXT, "typed"):
        terminal.type(pasted(text, False))
        terminal.until("stopped after 3 tokens")
        terminal.until("> ")
    assert heard(terminal, tmp_path) == [TEXT, "typed"]


def test_a_block_is_typed_or_pasted(chat, tmp_path, marked):
    terminal = chat("" if marked else PLAIN)
    for line in ('"""', "def f():"):
        terminal.type(line + "\r")
        terminal.until(r"\. ")
    terminal.type('    pass"""\r')
    terminal.until("stopped after 3 tokens")
    terminal.until("> ")
    terminal.type(pasted('"""\na\nb\n"""', marked))
    terminal.until("stopped after 3 tokens")
    terminal.until("> ")
    assert heard(terminal, tmp_path) == ["def f():\n    pass", "a\nb"]


def test_code_that_begins_with_a_docstring_is_no_block(chat, tmp_path, marked):
    terminal = chat("" if marked else PLAIN)
    code = '"""What it is."""\nx = 1'
    terminal.type(pasted(code, marked))
    terminal.until("stopped after 3 tokens")
    terminal.until("> ")
    assert heard(terminal, tmp_path) == [code]
