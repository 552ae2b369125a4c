"""The file from which editors know how each source is compiled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from checkout import ROOT

# Stands for a compiler and a linker: leaves empty files.
COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do
    [ "$1" = -o ] && : >"$2"
    shift
done
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a script of POSIX")
def test_each_source_has_its_own_flags(tmp_path):
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "edgespec/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    sources = {path.name: path for path in (ROOT / "runtime/kernels").glob("*.cc")}
    (tmp_path / "runtime/kernels").mkdir(parents=True)
    for path in sources.values():
        shutil.copy(path, tmp_path / "runtime/kernels")
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--compile-commands"],
        cwd=tmp_path,
        env=os.environ | {"CXX": str(compiler), "EDGESPEC_BUILD_KERNELS": ""},
        check=True,
    )
    entries = json.loads((tmp_path / "compile_commands.json").read_text("utf-8"))
    found = {entry["file"].rpartition("/")[2]: entry for entry in entries}
    assert found.keys() == {name for name in sources if not name.startswith("kernels_")} | {
        "kernels_plain.cc"
    }
    for name, entry in found.items():
        assert entry["directory"] == str(tmp_path)
        assert {str(compiler), "-ffp-contract=off", entry["file"]} <= set(entry["arguments"])
        assert ("-O2" in entry["arguments"]) == (name == "kernels_plain.cc")
