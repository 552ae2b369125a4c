"""How setup.py compiles the operators, with a stand-in for the compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a script of POSIX")

# Stands for a compiler and a linker: notes what it is called for, and leaves files. Like zig it
# leaves one where it is asked for its version.
COMPILER = """#!/bin/sh
case " $* " in *" --version "*) : >a.o; exec cat "$0.version" ;; esac
echo "$@" >>"$0.calls"
while [ $# -gt 0 ]; do
    [ "$1" = -o ] && echo "$@" >"$2"
    shift
done
"""
SOURCES = ROOT / "runtime/kernels"
NAMES = {path.name for path in SOURCES.glob("*.cc")}
COMPILED = {name for name in NAMES if not name.startswith("kernels_")} | {"kernels_plain.cc"}


class Builder:
    """Builds copies of the sources, with a cache folder of its own."""

    def __init__(self, folder):
        self._folder = folder
        self.objects = folder / "cache/objects"
        self.compiler = folder / "compiler"
        self.compiler.write_text(COMPILER)
        self.compiler.chmod(0o755)
        self.version = folder / "compiler.version"
        self.version.write_text("1.0")
        self._calls = folder / "compiler.calls"

    def copy(self, name):
        """A folder of the sources, as pip makes one for each build."""
        folder = self._folder / name
        for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "edgespec/__init__.py"):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
        shutil.copy(ROOT / "edgespec/errors.py", folder / "edgespec")
        shutil.copytree(ROOT / "edgespec/system", folder / "edgespec/system")
        for file in [*SOURCES.glob("*.cc"), *SOURCES.glob("*.h")]:
            (folder / "runtime/kernels").mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder / "runtime/kernels")
        return folder

    def start(self, folder, *options, **variables):
        """Returns the process of a build."""
        own = {
            "CXX": str(self.compiler),
            "EDGESPEC_BUILD_KERNELS": "",
            "EDGESPEC_CACHE": str(self.objects.parent),
        }
        command = [sys.executable, "setup.py", "-q", "build_ext", *options]
        return subprocess.Popen(command, cwd=folder, env=os.environ | own | variables)

    def build(self, folder, *options, **variables):
        """Returns the names of the sources that were compiled for it."""
        self._calls.write_text("")
        assert self.start(folder, *options, **variables).wait() == 0
        words = self._calls.read_text().split()
        return {Path(each).name for each in words if each.endswith(".cc")}


@pytest.fixture
def builder(tmp_path):
    return Builder(tmp_path)


def test_each_source_has_its_own_flags(builder):
    folder = builder.copy("sources")
    builder.build(folder, "--compile-commands")
    entries = json.loads((folder / "compile_commands.json").read_text("utf-8"))
    found = {entry["file"].rpartition("/")[2]: entry for entry in entries}
    assert found.keys() == COMPILED
    for name, entry in found.items():
        assert entry["directory"] == str(folder)
        assert {str(builder.compiler), "-ffp-contract=off", entry["file"]} <= set(
            entry["arguments"]
        )
        assert ("-O2" in entry["arguments"]) == (name == "kernels_plain.cc")


def test_what_was_compiled_is_kept_for_the_next_build(builder):
    first, second = builder.copy("first"), builder.copy("second")
    assert builder.build(first) == COMPILED
    assert builder.build(second, "--compile-commands") == set()
    assert len(json.loads((second / "compile_commands.json").read_text("utf-8"))) == len(COMPILED)
    made = {path.name: path.read_bytes() for path in first.rglob("kernels/*.o")}
    assert made == {path.name: path.read_bytes() for path in second.rglob("kernels/*.o")}
    assert len(made) == len(COMPILED)
    assert not (first / "a.o").exists()


def test_what_differs_is_compiled_again(builder):
    builder.build(builder.copy("first"))
    changed = builder.copy("changed")
    with (changed / "runtime/kernels/short_conv.cc").open("a") as file:
        file.write("// changed\n")
    assert builder.build(changed) == {"short_conv.cc"}
    with (changed / "runtime/kernels/half.h").open("a") as file:
        file.write("// changed\n")
    assert builder.build(changed) == COMPILED
    again = builder.copy("again")
    assert builder.build(again, CXXFLAGS="-O1") == COMPILED
    builder.version.write_text("1.1")
    assert builder.build(again) == COMPILED


def test_a_kept_object_that_is_damaged_or_unreadable_is_compiled_again(builder):
    folder = builder.copy("sources")
    builder.build(folder)
    cut, changed, unreadable, *_ = builder.objects.iterdir()
    cut.write_bytes(cut.read_bytes()[:-1])
    changed.write_bytes(changed.read_bytes()[:-1] + b"?")
    unreadable.unlink()
    unreadable.mkdir()
    assert len(builder.build(folder)) == 3
    assert len(builder.build(folder)) == 1  # a folder stays in the way


def test_a_compiler_that_does_not_say_its_version_is_called_each_time(builder):
    folder = builder.copy("sources")
    builder.version.unlink()
    assert builder.build(folder) == COMPILED
    assert builder.build(folder) == COMPILED


def test_without_a_cache_folder_all_is_compiled(builder):
    folder = builder.copy("sources")
    builder.objects.parent.write_text("a file in its place")
    assert builder.build(folder) == COMPILED
    assert builder.build(folder) == COMPILED


def test_builds_at_once_each_have_all_objects(builder):
    folders = [builder.copy(f"sources {number}") for number in range(2)]
    builds = [builder.start(each) for each in folders]
    assert [build.wait() for build in builds] == [0, 0]
    assert len(list(builder.objects.iterdir())) == len(COMPILED)
    assert builder.build(folders[0]) == set()


def test_what_was_not_used_for_longest_is_removed(builder):
    folder = builder.copy("sources")
    builder.build(folder)
    kept = {path.name for path in builder.objects.iterdir()}
    old = builder.objects / "old"
    with old.open("wb") as file:
        file.truncate(65 << 20)
    os.utime(old, (0, 0))
    builder.build(folder)
    assert {path.name for path in builder.objects.iterdir()} == kept
