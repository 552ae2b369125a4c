"""Builds the site of the documents, with every warning as an error.

    pip install ".[docs]"
    python .ci/site.py build/site

The pages are those of the checkout, at the same places, so that links lead from one to another here
as there. Other files that they link to become pages, too. The reference is written of the public
names: options as tables, all else of docstrings.
"""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import edgespec
from edgespec.errors import EdgespecError
from edgespec.system.options import Options, declared

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "docs" / "zensical.toml"
REFERENCE = "docs/reference.md"
LINK = re.compile(r"(\]\()(?!https?:|#)([^)#]+)(?=[)#])")
LANGUAGES = {".py": "python", ".toml": "toml"}


def names_of(entry: object) -> Iterator[str]:
    """Yields the pages of a part of the navigation."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        yield from names_of(list(entry.values()))
    elif isinstance(entry, list):
        for each in entry:
            yield from names_of(each)


def write(path: Path, text: str) -> None:
    """Writes a page to its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def page(name: str, shown: set[Path]) -> str:
    """Returns a page of the checkout, and adds files that it links to and that are no pages."""
    path = ROOT / name

    def link(found: re.Match[str]) -> str:
        file = (path.parent / found[2]).resolve()
        if file.suffix == ".md" or not file.is_file():
            return found[0]
        shown.add(file.relative_to(ROOT))
        return f"{found[0]}.md"

    return LINK.sub(link, path.read_text("utf-8"))


def lay_out(pages: Path, names: list[str]) -> None:
    """Writes the pages of the checkout, and those that show files which they link to."""
    shown = set[Path]()
    for name in names:
        write(pages / name, page(name, shown))
    for file in shown:
        code = f"# {file.name}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n"
        write(pages / f"{file}.md", f"{code}{(ROOT / file).read_text('utf-8')}````\n")


def link_package(package: Path) -> None:
    """Lays the package out as a wheel has it, for what reads docstrings without importing them."""
    package.mkdir(parents=True)
    parts = [
        *(ROOT / "edgespec").iterdir(),
        *(ROOT / name for name in ("export", "models", "runtime")),
    ]
    for part in parts:
        (package / part.name).symlink_to(part)


def option_table(kind: type) -> str:
    """Returns a table of the options of a class, but those of a base that has a table, too."""
    options = declared(kind)
    told = ""
    base = kind.__bases__[0]
    if base.__name__ in edgespec.__all__:
        options = {name: each for name, each in options.items() if name not in declared(base)}
        told = f"In addition to those of `{base.__name__}`:\n\n"
    parameters = inspect.signature(kind).parameters
    rows = ["| option | type | default | meaning |", "|---|---|---|---|"]
    for name, option in options.items():
        meaning = option.text + (f"; None: {option.none}" if option.none else "")
        default = parameters[name].default
        rows.append(f"| `{name}` | `{parameters[name].annotation}` | `{default!r}` | {meaning} |")
    return told + "\n".join(rows)


def entry(module: ModuleType, name: str) -> str:
    """Returns what the reference has of a public name."""
    found = getattr(module, name)
    if isinstance(found, type) and issubclass(found, Options):
        return f"### {module.__name__}.{name}\n\n{option_table(found)}"
    return f"::: {module.__name__}.{name}"


def reference() -> str:
    """Returns the page of all public names, of which a text in Markdown is made."""
    errors = vars(edgespec.errors).items()
    public = {
        edgespec: [name for name in edgespec.__all__ if not name.startswith("__")],
        edgespec.export: edgespec.export.__all__,
        edgespec.errors: [name for name, each in errors if is_error(name, each)],
    }
    parts = ["# Reference"]
    for module, names in public.items():
        parts.append(f"## {module.__name__}")
        parts += [
            entry(module, each) for each in names if not inspect.ismodule(getattr(module, each))
        ]
    return "\n\n".join(parts) + "\n"


def is_error(name: str, found: object) -> bool:
    """Whether a name of the errors' module is an error that users may catch."""
    return isinstance(found, type) and issubclass(found, EdgespecError) and not name.startswith("_")


def build(site: Path) -> None:
    """Builds the site to a folder, which is replaced.

    Raises:
        SystemExit: if there is a warning.
    """
    nav = tomllib.loads(CONFIG.read_text("utf-8"))["project"]["nav"]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        lay_out(work / "pages", [name for name in names_of(nav) if name != REFERENCE])
        write(work / "pages" / REFERENCE, reference())
        link_package(work / "package" / "edgespec")
        shutil.copy(CONFIG, work)
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"],
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        # Strictness is about links; what is wrong with docstrings is only printed.
        if done.returncode or re.search("^(griffe|mkdocstrings): ", done.stdout, re.M):
            sys.exit(done.stdout)
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(work / "site", site)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Builds the site of the documents.")
    parser.add_argument("site", type=Path, help="folder of the site, which is replaced")
    build(parser.parse_args().site)
