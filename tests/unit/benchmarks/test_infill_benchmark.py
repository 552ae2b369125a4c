"""The benchmark of suggestions at a cursor, on a small model against another server of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from checkout import ROOT
from fillers import make_filler
from servers import serving

from edgespec import LLM

SCRIPT = ROOT / "benchmarks/infill.py"
ARGUMENTS = (
    "--context-tokens=200", "--new-tokens=6", "--contexts=2", "--keys=2", "--threads=1",
    "--draft=lookup",
)  # fmt: skip


def run(*arguments):
    command = [sys.executable, SCRIPT, *ARGUMENTS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_filler(tmp_path_factory.mktemp("filler"))


@pytest.mark.slow
def test_all_servers_are_asked_for_the_same_and_what_is_typed_is_all_that_is_read(bundle):
    with LLM(bundle, draft="none", threads=1) as llm, serving(llm) as running:
        done = run(bundle, f"--against={running.url}")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    answers = result["answers"]
    assert {way: len(found) for way, found in answers.items()} == {
        "edgespec cold": 2,
        "plain cold": 2,
        "against cold": 2,
        "edgespec typed": 4,
        "plain typed": 4,
        "against typed": 4,
    }
    for way, found in answers.items():
        for each in found:
            assert each["prompt_tokens"] > 200
            assert each["first_ms"] <= each["whole_ms"]
            assert (each["read"] > 200) == way.endswith("cold")
    assert "| edgespec typed" in done.stdout


def test_a_server_that_is_not_there_is_told(bundle):
    done = run(bundle, "--against=http://127.0.0.1:9")
    assert done.returncode == 2
    assert "error: http://127.0.0.1:9 does not answer" in done.stderr
