"""Nothing that a model or a stranger wrote steers the user's terminal."""

from __future__ import annotations

import ast
import io
import re
import sys
from pathlib import Path

import pytest
from checkpoints import make_checkpoint, write_tokenizer
from commandline import FAST, PROMPT
from ggufs import write_gguf
from terminals import Terminal

from edgespec import cli as commands
from edgespec import export
from edgespec.cli.consoles import HarmlessConsole
from edgespec.cli.terminal import tell
from edgespec.errors import harmless
from edgespec.export import ExportOptions

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="has no such names, or terminals")
STEERING = "\x1b]52;c;cm0gLXJmIC8=\x07\x1b[8mhidden\x9b2J\r\x08\x7f\u202e"
SHOWN = r"\x1b]52;c;cm0gLXJmIC8=\x07\x1b[8mhidden\x9b2J\r\x08\x7f\u202e"
WRITTEN = "naïve\u00a0! 你好\u3000世界 می\u200cروم 👩\u200d🚀\ufe0f שלום\u200f \ue000\tx\n"
"""What texts need: spaces that do not break, joiners, marks of direction, a tab."""


def test_what_steers_is_shown_and_what_is_written_stays():
    assert harmless(STEERING) == SHOWN
    assert harmless(WRITTEN) == WRITTEN
    assert harmless("\ud800") == r"\ud800"


def test_a_terminal_gets_harmless_text_and_a_pipe_what_it_is(monkeypatch):
    screen = io.StringIO()
    tell(STEERING, 3, stream=screen, end="|")
    assert screen.getvalue() == f"{STEERING}\n3|"
    monkeypatch.setattr(screen, "isatty", lambda: True)
    tell(STEERING, stream=screen)
    assert screen.getvalue().endswith(f"|{SHOWN}\n")


def test_tables_show_what_steers():
    from rich.table import Table

    screen = io.StringIO()
    console = HarmlessConsole(file=screen, force_terminal=True, width=200)
    table = Table(STEERING, title=STEERING)
    table.add_row(STEERING)
    console.print(table)
    console.print(STEERING, style="dim", highlight=False)
    assert screen.getvalue().count(r"\x1b]52;") == 4
    assert "\x1b]" not in screen.getvalue()
    assert not re.search("[\x00-\x08\x0b-\x1a\x7f-\x9f\u202e]", screen.getvalue())


def calls(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def test_no_other_module_prints():
    printing = {"terminal.py", "waiting.py"}
    for path in Path(commands.__file__).parent.rglob("*.py"):
        assert path.name in printing or "print" not in calls(path), path
        assert "Console" not in calls(path), path


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A bundle of random weights that chats, beside its checkpoint."""
    folder = tmp_path_factory.mktemp("chatty")
    make_checkpoint(folder / "checkpoint", "llama")
    write_tokenizer(folder / "checkpoint", 331)
    (folder / "checkpoint" / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    export.make(folder / "checkpoint", folder / "bundle", options=ExportOptions("fp32"))
    return folder / "bundle"


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A file of options by which a text steers a terminal."""
    file = tmp_path_factory.mktemp("settings") / "steering.toml"
    file.write_text('regex = "\\\\x1b\\\\]52;c;cm0gLXJmIC8=\\\\x07"\n')
    return file


@POSIX
@pytest.mark.parametrize("words", [["--raw"], []])
def test_a_text_of_run_does_not_steer(chatty, settings, words):
    run = Terminal("", chatty, "-p", "x\x1b[8m", *words, "--config", settings, *FAST, command="run")
    run.until(r"tokens \(")
    assert r"\x1b]52;c;cm0gLXJmIC8=\x07" in run.shown
    assert not {"\x1b]", "\x07", "\x1b[8m"} & {*re.findall("\x1b.|\x07|\x1b\\[8m", run.shown)}
    run.close()


def test_a_pipe_gets_the_text_itself(cli, chatty, settings):
    assert "\x1b]52;" in cli("run", chatty, "-p", "x", "--config", settings, *FAST).out


@POSIX
def test_names_of_files_do_not_steer(cli, chatty, tmp_path, own_cache, monkeypatch):
    """As bundles, as GGUF files of which one is made, and as what does not exist."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "400")  # in which paths of any test have room
    name = "\x1b]0;title\x07"
    (tmp_path / name).symlink_to(chatty)
    (tmp_path / f"{name}.gguf").symlink_to(tmp_path / "model.gguf")
    write_gguf(chatty.parent / "checkpoint", tmp_path / "model.gguf", "Q8_0")
    for words in (
        ["plan", tmp_path / name],
        ["inspect", tmp_path / name],
        ["show", f"{name}x"],
        ["run", f"{tmp_path / name}.gguf", PROMPT, "-n", 1, *FAST],
        ["list"],
        ["run", f"{name}.gguf"],
        ["rm", name],
        ["export", name, "-o", tmp_path / "made"],
        ["export", chatty, "-o", tmp_path / f"{name}2", "--draft", chatty.parent / "checkpoint"],
        ["pull", f"{tmp_path / name}.gguf"],
        [name],
    ):
        shown = cli(*words, terminal=True)
        assert not {"\x1b]", "\x07"} & {*re.findall("\x1b]|\x07", shown.out + shown.err)}, words
        unwrapped = re.sub(r"\x1b\[[\d;]*m|\n", "", shown.out + shown.err)  # titles of tables wrap
        assert r"\x1b]0;title" in unwrapped or words[0] == "pull", words
