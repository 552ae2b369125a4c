"""The programs in the documents, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import edgespec
from edgespec import LLM

DOCS = Path(__file__).parents[1] / "docs"
SOURCE = Path(edgespec.__file__).parents[1]
PROGRAMS = re.findall(
    r"^```python\n(.*?)^```", (DOCS / "embedding.md").read_text("utf-8"), re.M | re.S
)


@pytest.fixture
def run(tmp_path):
    def run(program, **environment):
        path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path, env={**os.environ, **environment, "PYTHONPATH": path},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_script(run):
    out = run(PROGRAMS[0]).splitlines()
    known = [list(map(int, re.findall(r"\d+", line))) for line in out[:3]]
    assert known[0][0] == 0
    # All but the last token of the text, which was never fed, and what the new words joined it to.
    for (_, before), (reused, tokens) in pairwise(known):
        assert before < reused < tokens
    assert out[3].startswith("TokenLogprobs(token=")


def test_an_asyncio_loop(run):
    out = run(PROGRAMS[1]).splitlines()
    assert sorted(line for line in out if ":" not in line) in (
        ["left cancelled", "right length"], ["left length", "right length"],
    )  # fmt: skip
    assert {line.partition(":")[0] for line in out if ":" in line} == {"left", "right"}


def test_a_client_of_openais(run, start):
    process = start("serve", "--port=0", "--draft=none", "--threads=1", "--device=onnxruntime:cpu")
    url = next(
        found[1].decode()
        for line in process.stderr
        if (found := re.search(rb" is served on (http://\S+):", line))
    )
    form, text = run(PROGRAMS[2], OPENAI_BASE_URL=f"{url}/v1").split("\n", 1)
    assert form in ("Python", "C")
    expected = LLM(draft="none", device="onnxruntime:cpu", threads=1).generate(
        "class Stack:\n", max_new_tokens=40
    )
    assert text == expected.text
