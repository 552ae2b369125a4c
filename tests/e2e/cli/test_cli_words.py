"""Words of the command line: Ollama's spellings, misspelt ones, help in two lengths, completion."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
from checkpoints import make_checkpoint, write_tokenizer
from commandline import fails

from edgespec.cli.parsing import COMMANDS, SPELLINGS, CommandParser


def helped(cli, capsys, *words):
    with pytest.raises(SystemExit) as ended:
        cli(*words)
    assert not ended.value.code
    return capsys.readouterr().out


def test_alone_it_helps(cli, capsys):
    shown = helped(cli, capsys)
    assert shown == helped(cli, capsys, "help") == helped(cli, capsys, "--help")
    assert shown == helped(cli, capsys, "--help-all")
    assert all(f"\n    {command}" in shown for command in COMMANDS)
    assert all(f"`{spelling}" in shown for spelling in (*SPELLINGS, "help"))


@pytest.mark.parametrize(
    ("asked", "meant"), [("serve", "serve"), ("list", "models"), ("show", "inspect")]
)
def test_help_of_a_command(cli, capsys, asked, meant):
    shown = helped(cli, capsys, "help", asked)
    assert shown.startswith(f"usage: edgespec {meant} ")
    assert shown == helped(cli, capsys, asked, "--help")


OF_ALL = {"-h", "--help-all", "-v", "--config"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_shows_about_six_options_and_has_no_more_than_some(cli, capsys, command):
    def options(word):
        shown = helped(cli, capsys, command, word)
        return set(re.findall(r"^  (--?[a-z-]+)", shown, re.MULTILINE)), shown

    (usual, shown), (every, _) = options("--help"), options("--help-all")
    assert usual <= every
    assert len(usual - OF_ALL) <= 7
    assert len(every - OF_ALL) <= (28 if command == "serve" else 20)  # for weeks, and for others
    assert {"-h", "-v", "--help-all"} <= every
    more = len(every - usual)
    told = f"\n{more} more option{'s' if more > 1 else ''}: edgespec {command} --help-all\n"
    assert told in shown


def test_models_are_pulled_listed_shown_and_removed(cli, tmp_path, own_cache):
    make_checkpoint(tmp_path / "small", "llama")
    write_tokenizer(tmp_path / "small", 331)
    folder = cli("pull", tmp_path / "small").out.strip()
    assert folder == str(own_cache / "models" / "small")
    (listed,) = json.loads(cli("list", "--json").out)
    assert (listed["name"], listed["path"]) == ("small", folder)
    assert cli("list").out == cli("models").out
    assert cli("show", "small").out == cli("inspect", "small").out
    assert cli("pull", "small").out.strip() == folder  # which is there already
    assert cli("rm", "small").code == 0
    fails(cli("show", "small"), "there is no model 'small'")
    fails(cli("pull"), "MODEL")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["chta"], "did you mean chat?"),
        (["--verison"], "did you mean --version?"),
        (["lst"], "did you mean list?"),
        (["help", "sevre"], "did you mean serve?"),
        (["run", "--temprature", "1", "x y"], "did you mean --temperature?"),
        (["export", "m", "--outptu=x"], "did you mean --output?"),  # which is required
        (["chat", "--hlep"], "did you mean --help?"),
        (["rm", "--jsno"], "did you mean --json?"),
    ],
)
def test_what_is_misspelt_is_told_what_it_may_mean(cli, words, meant):
    fails(cli(*words), meant, "--help")


def test_what_is_like_nothing_is_told_where_to_look(cli):
    for words in (["xyzzy"], ["serve", "--xyzzy"]):
        found = cli(*words)
        fails(found, "xyzzy", "--help")
        assert "did you mean" not in found.err


SHELLS = {
    "bash": 'eval "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _edgespec; '
    'printf "%s\\n" "${COMPREPLY[@]}"',
    "zsh": 'autoload -Uz compinit; compinit -D -u; eval "$1"; shift; emulate -L sh; '
    'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _edgespec; printf "%s\\n" "${COMPREPLY[@]}"',
    "fish": 'eval "$argv[1]"; complete -C(string join -- " " $argv[2..])',
}
"""Print what a shell completes the last of its arguments to, behind the script."""
WITHOUT = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}
"""The user's own settings."""


@pytest.mark.skipif(sys.platform == "win32", reason="paths in scripts are POSIX")
@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_commands_options_values_and_models(cli, own_cache, tmp_path, shell):
    path = shutil.which(shell)
    script = cli("completion", shell).out
    assert ("-l draft-device" if shell == "fish" else "--draft-device") in script
    if path is None:
        pytest.skip(f"there is no {shell}")

    def completed(*words):
        own = [shell] * (shell != "fish")
        run = [path, *WITHOUT[shell], "-c", SHELLS[shell], *own, script, "edgespec", *words]
        done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=tmp_path)
        found = {line.split("\t")[0] for line in done.stdout.splitlines() if line}
        return {each for each in found if shell != "zsh" or each.startswith(words[-1])}

    assert completed("ch") == {"chat"}
    assert completed("") == {*COMMANDS, *SPELLINGS, "help"}
    assert completed("run", "m", "--temp") == {"--temperature"}
    assert completed("train-draft", "b", "--kind", "d") == {"dflash", "dspark"}
    assert completed("help", "com") == {"completion"}
    assert completed("completion", "f") == {"fish"}
    assert completed("chat", "--history", "x") == set()  # a file, which shells complete
    for name in ("qwen-coder", "smollm2"):
        (own_cache / "models" / name).mkdir()  # behind the script
    for words in (["rm"], ["show"], ["run"], ["serve"], ["chat", "--json", "--draft"]):
        assert completed(*words, "qwen-") == {"qwen-coder"}
    for words in (["chat"], ["pull"], ["run", "x", "--draft"]):
        assert completed(*words, "qwen3.5:4") == {"qwen3.5:4b"}
    assert completed("rm", "qwen3.5:4") == set()
    assert {"smollm2", "smollm2:135m"} <= completed("serve", "smol")
    assert completed("chat", "--draft", "lo") == {"lookup"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("pieces", "behind"), [(["qwen3.5", ":"], "4b"), (["qwen3.5", ":", "4"], "4b")]
)
def test_bash_completes_behind_a_colon(cli, pieces, behind):
    """At which it splits words, and puts what it is given behind the last of them."""
    script = cli("completion", "bash").out
    for words in (["chat"], ["run", "x", "--draft"]):
        given = ["bash", script, "edgespec", *words, *pieces]
        run = ["bash", "--norc", "-c", SHELLS["bash"], *given]
        done = subprocess.run(run, capture_output=True, text=True, check=True)
        assert behind in done.stdout.split()
        assert not any(":" in each for each in done.stdout.split())


INTERNAL = re.compile(r"invalid \w+ value|literal|could not convert|Errno|<class")
"""What Python says, and users should not have to read."""


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_answers_in_pythons_words(cli, command, tmp_path):
    """Every option of every command with a value that it does not take."""
    parser = CommandParser(command=command, prog=f"edgespec {command}")
    for option in parser.declare():
        if not option.option_strings or option.nargs == 0 or option.dest in ("help", "config"):
            continue
        for value in ("many", "", "1e", "nan", "-"):
            words = [*{"export": ["x", "-o", "y"]}.get(command, []), option.option_strings[0]]
            found = cli(command, *words, value, "--", "nowhere")
            assert found.code in (0, 2, 3), (option, value, found)
            assert not INTERNAL.search(found.err), (option, value, found.err)


def test_help_on_a_terminal_begins_with_it(cli, capsys, monkeypatch):
    """No line about waiting comes before it, nor is anything removed."""
    for words in ([], ["--help"], ["help", "run"], ["run", "--help"], ["run", "-h", "x"]):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        with pytest.raises(SystemExit):
            cli(*words, terminal=True)
        shown = capsys.readouterr()
        assert shown.out.startswith("usage: edgespec ")
        assert shown.err == ""
    with pytest.raises(SystemExit):
        cli("--version", terminal=True)
    assert capsys.readouterr().out.startswith("edgespec ")
