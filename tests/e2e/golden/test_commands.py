"""What every command takes and prints, to the letter; see `golden.py`.

Of help, the options are compared, since versions of Python print them in several ways. Numbers that
depend on the machine are left out.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from golden import golden_file, shipped_bundle
from native_llms import with_library

from edgespec.cli import main
from edgespec.cli.parsing import COMMANDS, main_parser
from edgespec.store.catalogue import Catalogue

pytestmark = with_library

PLAIN = ["--draft", "none"]
# BUNDLE stands for a bundle, and CHAT for one with a chat template.
CALLS = {
    "version": ["--version"],
    "unknown command": ["rnu"],
    "unknown option": ["run", "--temprature", "1"],
    "no such model": ["run", "none.gguf", "a"],
    "run": ["run", "BUNDLE", "def add(a, b):\n", "-n", "12", *PLAIN],
    "run, sampled": [
        "run",
        "BUNDLE",
        "def f(",
        "-n",
        "12",
        "--temperature",
        "0.8",
        "--seed",
        "1",
        *PLAIN,
    ],
    "run, a conversation": [
        "run",
        "CHAT",
        "def add(a, b):",
        "-n",
        "8",
        "--chat",
        "--seed",
        "1",
        *PLAIN,
    ],
    "run, no chat template": ["run", "BUNDLE", "hello", "--chat"],
    "run, a number that is none": ["run", "BUNDLE", "a", "-n", "many"],
    "run, a number that is too large": ["run", "BUNDLE", "a", "--temperature", "-1"],
    "run, a context that is too long": ["run", "BUNDLE", "a", "--context", "100000"],
    "run, a draft that is none": ["run", "BUNDLE", "a", "--draft", "head"],
    "run, a device that is none": ["run", "BUNDLE", "a", "--device", "tpu"],
    "inspect": ["inspect", "BUNDLE"],
    "plan": ["plan", "BUNDLE", "--context", "256"],
    "plan, too little memory": ["plan", "BUNDLE", "--memory", "1MiB"],
    "models": ["list"],
    "models, no such name": ["rm", "none"],
    "eval, no texts": ["eval", "BUNDLE", "--text", "none.txt"],
    "batch, no file": ["batch", "BUNDLE", "none.jsonl", "-o", "out.jsonl"],
    "export, no checkpoint": ["export", "none", "-o", "out"],
    "completion": ["completion", "bash"],
}
_DIGEST = re.compile(r"\b[0-9a-f]{12}…")
_UNITS = "s|ms|MB|MiB|GiB|GB|tokens/s"
_NUMBER = re.compile(rf" *\d[\d,]*(?:\.\d\b|(?:\.\d+)?(?= ?(?:{_UNITS})\b))")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    plain, chat = (tmp_path_factory.mktemp(name) for name in ("plain", "chat"))
    return {"BUNDLE": str(shipped_bundle(plain)), "CHAT": str(shipped_bundle(chat, template))}


@pytest.fixture(scope="module")
def check():
    with golden_file(Path(__file__).parent / "commands.json") as check:
        yield check


def unchanging(text, places):
    """The lines that are printed on every machine, with names for paths."""
    for name, path in places.items():
        text = text.replace(path, name)
    text = _NUMBER.sub("…", _DIGEST.sub("…", text))
    # Titles of tables are as far to the right as paths are long.
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.parametrize("name", CALLS)
def test_what_is_printed(bundles, check, capsys, own_cache, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    try:
        code = main([bundles.get(word, word) for word in CALLS[name]])
    except SystemExit as end:
        code = end.code
    shown = capsys.readouterr()
    places = {**bundles, "CACHE": str(own_cache), "FOLDER": str(tmp_path)}
    places["NAMES"] = " ".join(Catalogue.read().names)
    out, err = (unchanging(text, places) for text in (shown.out, shown.err))
    check(name, {"arguments": CALLS[name], "code": code, "out": out, "err": err})


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_taken(check, command):
    [commands] = [each for each in main_parser()._actions if each.dest == "command"]
    actions = commands.choices[command].declare()
    told = [
        {
            "names": each.option_strings or [each.dest],
            "value": each.metavar or "",
            "help": "" if each.help == argparse.SUPPRESS else each.help or "",
            "rare": type(each.help).__name__ == "Rare",
        }
        for each in actions
    ]
    check(f"{command} --help-all", told)
