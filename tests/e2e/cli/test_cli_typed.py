"""`edgespec chat` in a terminal: what is typed, and what is pasted."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest
from commandline import FAST
from servers import make_bundle
from terminals import LIBEDIT, PLAIN, Terminal, pasted

from edgespec.models.embedded import BUNDLE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="terminals of POSIX")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("typed"))


@pytest.fixture
def chat(bundle):
    """Begin one, wait for its first prompt."""
    begun = []

    def begin(before="", **options):
        begun.append(Terminal(before, bundle, *FAST, "-n", 3, "--draft", "none", **options))
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


EDITORS = {"readline": "", "plain": PLAIN, "libedit": LIBEDIT}
EITHER = pytest.mark.parametrize("before", EDITORS.values(), ids=EDITORS)


def say(terminal, *lines):
    """Type a message line by line, and wait for its answer."""
    for line in lines[:-1]:
        terminal.type(line + "\r")
        terminal.until(r"\. ")
    terminal.type(lines[-1] + "\r")
    terminal.until("stopped after 3 tokens")
    terminal.until("> ")


@EITHER
def test_a_line_that_ends_in_a_backslash_goes_on(chat, tmp_path, before):
    terminal = chat(before)
    say(terminal, "one\\", "  two \\", "three")
    say(terminal, "a path C:\\\\")
    assert heard(terminal, tmp_path) == ["one\n  two \nthree", "a path C:\\\\"]


@EITHER
@pytest.mark.parametrize("first", ['"""', "/begun\\"])
def test_ctrl_c_drops_a_message_that_has_begun(chat, tmp_path, before, first):
    terminal = chat(before)
    for line in (first, "not this\\"):
        terminal.type(line + "\r")
        terminal.until(r"\. ")
    time.sleep(0.5)  # the prompt is shown before the keys are listened to, and Ctrl-C would wait
    terminal.type("\x03")
    terminal.until("> ")
    say(terminal, "this")
    assert heard(terminal, tmp_path) == ["this"]


@pytest.fixture
def folder(tmp_path):
    """A folder with files to mention."""
    made = tmp_path / "here"
    (made / "sub").mkdir(parents=True)
    for name in ("notes.txt", "two words.txt", "sub/deep.txt", ".hidden.txt"):
        (made / name).write_text(f"text of {name}\n")
    return made


def test_tab_completes_names_and_commands(brackets, chat, folder, tmp_path):
    terminal = chat(folder=folder)
    for typed in ("@no\t", "@su\t\t", "@two\t", "@.h\t", "@./sub/\t"):
        say(terminal, typed)
    terminal.type("/sta\t\r")
    terminal.until("tokens/s")
    assert heard(terminal, tmp_path) == [
        f"text of {name}\n"
        for name in ("notes.txt", "sub/deep.txt", "two words.txt", ".hidden.txt", "sub/deep.txt")
    ]


@EITHER
def test_tab_is_a_tab_elsewhere(chat, tmp_path, before):
    terminal = chat(before)
    say(terminal, "\tif x:\treturn")
    assert heard(terminal, tmp_path) == ["\tif x:\treturn"]


UP = "\x1b[A"


def test_what_was_typed_comes_back_in_later_chats(brackets, chat, tmp_path, own_cache):
    first = chat()
    say(first, "typed")
    first.type(pasted("pasted\nlines", True))
    first.until("stopped after 3 tokens")
    first.until("> ")
    say(first, " not for later")
    first.leave()
    file = own_cache / "chat" / "typed.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert kept == ["typed", "pasted\nlines", "/bye"]
    file.write_text("no json\n[1]\n" + file.read_text())
    second = chat()
    say(second, 2 * UP)
    assert heard(second, tmp_path) == ["pasted\nlines"]


def test_what_is_typed_meanwhile_is_read_afterwards_and_not_shown_before():
    """While the model is loaded, and during an answer, of which `^C` is no part either."""
    chat = Terminal("", BUNDLE, *FAST, "-n", 300, "--draft", "none", "--temperature", 0)
    chat.until("the model is loaded")
    chat.type("def ahead():")
    chat.until("> ")
    assert "ahead" not in chat.shown[: chat.shown.rindex("> ")]
    chat.until(r"def ahead\(\):")
    chat.type("\r")
    chat.until(r"\n +\w")  # the answer has begun
    chat.type("def meanwhile():")
    chat.until("> ")
    assert "meanwhile" not in chat.shown[: chat.shown.rindex("> ")]
    chat.until(r"def meanwhile\(\):")
    chat.type("\r")
    chat.until(r"\n +\w")
    chat.type("\x03")
    chat.until("> ")
    assert "^C" not in chat.shown
    chat.leave()


def test_a_process_in_the_background_and_a_pager_keep_their_terminal(monkeypatch):
    """There, changing modes would stop the process, or be undone by others in the wrong order."""
    from edgespec.cli import echo

    monkeypatch.setattr(sys.stdin, "fileno", lambda: 0)
    for attribute in ("stdout", "foreground"):
        pty = pytest.importorskip("pty")
        ours, theirs = pty.openpty()
        monkeypatch.setattr(sys.stdin, "fileno", lambda number=theirs: number)
        monkeypatch.setattr(sys.stdout, "isatty", lambda shown=attribute != "stdout": shown)
        group = os.getpgrp() + (attribute == "foreground")
        monkeypatch.setattr(os, "tcgetpgrp", lambda _, found=group: found)
        assert echo._terminal_modes() is None
        os.close(ours)
        os.close(theirs)
