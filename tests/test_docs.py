"""The documents: their commands and links are good, and their tables true."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import pytest
from checkout import ROOT

import edgespec
from edgespec.cli.parsing import COMMANDS, SPELLINGS
from edgespec.models import ARCHITECTURES

PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text("utf-8")
    for folder in ("", "docs/", "docs/examples/", "benchmarks/", "models/*/")
    for page in ROOT.glob(f"{folder}*.md")
}
# A form of a command with its parts in brackets is no command.
LINES = [
    line
    for page in PAGES.values()
    for block in re.findall(r"(?:^    .*\n)+", page, re.M)
    for part in block.splitlines()
    for each in part.split(" && ")
    if (line := each.strip().removeprefix("$ ")).startswith("edgespec ") and " [" not in line
]


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", PAGES[page], re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("line", LINES)
def test_commands_are_understood(line, cli, monkeypatch):
    for command in COMMANDS:
        module = command.replace("-", "_")
        monkeypatch.setattr(f"edgespec.cli.commands.{module}.execute", lambda arguments: 0)
    result = cli(*shlex.split(line, comments=True)[1:])
    assert result.code == 0, result.err


def test_commands_that_prose_names_are_there():
    named = {name for page in PAGES.values() for name in re.findall(r"`edgespec ([a-z-]+)", page)}
    assert named - COMMANDS.keys() <= {"help", *SPELLINGS}
    assert len(named) > 10


def test_every_command_is_shown_by_its_page():
    assert COMMANDS.keys() <= set(re.findall(r"edgespec ([\w-]+)", PAGES["docs/commands.md"]))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", PAGES[page]):
        name, _, anchor = link.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), link
        if anchor:
            assert anchor in anchors(file.resolve().relative_to(ROOT).as_posix()), link


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_prose_are_short(page):
    """Those outside tables and code, whose lines cannot be broken."""
    prose = re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.M | re.S)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_are_named_exist(page):
    folders = "benchmarks|edgespec|export|models|runtime|tests"
    for name in re.findall(rf"\b(?:{folders})/[\w/.-]+\.py\b", PAGES[page]):
        assert (ROOT / name).exists(), name


def test_the_tables_of_models_are_those_of_the_code(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    table = importlib.import_module("models_table")
    name = "docs/models.md"
    assert table.page(PAGES[name]) == PAGES[name], "run python benchmarks/models_table.py"
    assert table.tables() in PAGES[name]
    cases = table.compared()
    assert all(cases[model_type] for model_type in ARCHITECTURES)
    assert all((ROOT / test).exists() for test in table.FORMATS.values())


def test_the_folders_are_those_of_the_code():
    """The table names every folder, and none that is not there."""
    told = set()
    outer = ""
    for row in re.findall(r"^\|.*\|$", PAGES["docs/architecture.md"], re.M)[2:]:
        _, first, names, *_ = row.split("|")
        outer = first.strip(" `") or outer
        told |= {outer + name for name in re.findall(r"`([^`]+)`", names)}
    assert all((ROOT / name).exists() for name in told), told
    folders = {
        each.parent.relative_to(ROOT).as_posix() + "/"
        for package in ("edgespec", "export", "models", "runtime")
        for each in (ROOT / package).glob("*/__init__.py")
    }
    assert folders <= told


def test_each_behaviour_names_a_test_that_exists():
    rows = re.findall(r"^\|.*\|$", PAGES["docs/behaviours.md"], re.M)
    promises = [row for row in rows if not row.endswith(("| test |", "|---|---|"))]
    known = {path.name for path in ROOT.glob("tests/**/test_*.py")}
    for row in promises:
        named = set(re.findall(r"`(test_\w+\.py)`", row))
        assert named, row
        assert named <= known, named - known
    assert len(promises) > 50


def test_every_page_has_its_place_on_the_site():
    project = tomllib.loads((ROOT / "docs/zensical.toml").read_text("utf-8"))["project"]
    first, *groups = project["nav"]
    placed = [first, *(page for group in groups for pages in group.values() for page in pages)]
    assert sorted(placed) == sorted([*PAGES, "docs/reference.md"])


@pytest.mark.skipif(
    find_spec("zensical") is None or find_spec("mkdocstrings") is None,
    reason='zensical or mkdocstrings is missing: pip install ".[docs]"',
)
def test_the_site_is_built_without_a_warning_and_explains_every_public_name(tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, str(ROOT / ".ci/site.py"), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    reference = (site / "docs/reference/index.html").read_text("utf-8")
    explained = set(re.findall(r'<h3 id="edgespec\W?([^"]+)"', reference))
    for name in edgespec.__all__:
        if name[0] != "_" and name not in ("errors", "export"):
            assert name in explained or name.lower() in explained, name
    assert "errors.MemoryLimitError" in explained
    assert "export.make" in explained
    assert "number of threads per engine" in reference
    program = (site / "docs/examples/tk_chat.py/index.html").read_text("utf-8")
    assert "ChatWindow" in program
    # Readers fetch nothing from elsewhere.
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?:[^>]+', text), page
