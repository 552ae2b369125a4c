"""What type checkers see of options: wrong names and values, before a program runs."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from checkout import BENCHMARKS

import edgespec

WRONG = """
from edgespec import LLM

llm = LLM("model.gguf", contxt=5)  # wrong
llm.generate("x", max_tokens="5")  # wrong
llm.generate(5)  # wrong
for piece in llm.stream("x", temperature="hot"):  # wrong
    print(piece)
print(llm.chat("x").txt)  # wrong
"""
RIGHT = """
from pathlib import Path

from edgespec import LLM

with LLM(Path("m"), context=5, memory={"cpu": 3}, draft=Path("d")) as llm:
    print(llm.generate("x", max_tokens=5, stop="a", stop_token_ids=[1]).text)
    print(llm.generate(["x", "y"], stop=["a"], temperature=1, logit_bias={1: 2.0})[0].text)
    llm.generate([1, 2], **llm.sampling)
    llm.chat([{"role": "user", "content": "x"}], tools=[print], **llm.sampling)
    with llm.session() as session:
        for piece in session.stream("x", json_schema={"type": "object"}):
            print(piece.upper())
"""
FOLDERS = "export", "models", "runtime"  # which in a checkout lie beside the package
_FAULT = re.compile(r"(\w+\.py):(\d+):.*\berror\b")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with the package as a wheel lays it out, which type checkers can read."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "edgespec").mkdir()
    for place in map(Path, edgespec.__path__):
        inner = place.iterdir() if place.name == "edgespec" else map(place.joinpath, FOLDERS)
        for each in inner:
            (folder / "edgespec" / each.name).symlink_to(each)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "checker", [("mypy", "--follow-imports=silent"), ("basedpyright",)], ids=lambda each: each[0]
)
def test_type_checkers_find_wrong_options_and_no_others(checker, package, tmp_path):
    if find_spec(checker[0]) is None:
        pytest.skip(f"{checker[0]} is not installed")
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "right.py").write_text(RIGHT)
    config = f'{{"typeCheckingMode": "standard", "extraPaths": ["{package}"]}}'
    (tmp_path / "pyrightconfig.json").write_text(config)
    run = subprocess.run(
        [sys.executable, "-m", *checker, "wrong.py", "right.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not run.stderr
    lines = {
        ("wrong.py", str(n)) for n, line in enumerate(WRONG.split("\n"), 1) if "# wrong" in line
    }
    assert len(lines) == 5
    assert set(_FAULT.findall(run.stdout)) == lines


def test_types_follow_from_the_classes_of_options(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    keywords = importlib.import_module("keywords")
    assert keywords.FILE.read_text("utf-8") == keywords.source(), "run benchmarks/keywords.py"
