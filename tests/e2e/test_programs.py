"""The programs of docs/python.md and README.md run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from chats import template
from checkout import ROOT
from checkpoints import make_checkpoint
from embeddings import make_embedding
from ggufs import write_gguf

import edgespec
from edgespec import LLM

PATHS = [str(Path(edgespec.__file__).parents[1]), str(ROOT / "tests/support")]
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
PROGRAMS = {
    title: found[1]
    for title, part in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    if (found := PROGRAM.search(part))
}
EXPECTED = LLM(threads=1, draft="none")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the models that programs name: random ones, of which bundles are made."""
    folder = tmp_path_factory.mktemp("home")
    make_checkpoint(folder / "chat", "llama", eos_token_id=0)
    fields = {"tokenizer.chat_template": template("hermes")}
    write_gguf(folder / "chat", folder / "model.gguf", **fields)
    make_embedding(folder / "vectors", "qwen3")
    fields = {"qwen3.pooling_type": 3, "tokenizer.ggml.add_eos_token": True}
    write_gguf(folder / "vectors", folder / "embedding.gguf", **fields)
    return folder


@pytest.fixture
def run(home):
    def run(program, **environment):
        path = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            cwd=home,
            env={**os.environ, **environment, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_one_generates(run):
    said, text = run(PROGRAMS["Generate"]).split("\n", 1)
    assert said.startswith("<LLM python-7m: target on ")
    expected = EXPECTED.generate("def gcd(a, b):", max_tokens=64)
    assert text.startswith(f"{expected.text}\n{expected.new_tokens} tokens, ")
    assert text.endswith(f" a second, {expected.finish_reason}\n")


def test_one_streams(run):
    out = run(PROGRAMS["Stream"])
    how = {"max_tokens": 80, "temperature": 0.8, "seed": 1}
    assert out.startswith(EXPECTED.generate("class Stack:", **how).text + "\n")
    assert re.search(r"\n\d+ of \d+ drafted tokens were accepted\n$", out)


def test_one_chats_and_goes_on_from_a_file(run, home):
    out = run(PROGRAMS["Chat"])
    reused, tokens = map(int, re.findall(r"(\d+) of (\d+) tokens were known\n$", out)[0])
    assert tokens / 2 < reused < tokens
    assert (home / "chat.safetensors").exists()


def test_one_writes_json(run):
    assert re.fullmatch(
        r"\d\d? lines of (Python|C|Rust), of [0-3] arguments\n", run(PROGRAMS["JSON"])
    )


def test_one_has_tools(run):
    first = run(PROGRAMS["Tools"]).split("\n")[0]
    assert re.fullmatch(r"get_weather: In (Rome|Oslo) the sun will shine in [123] days\.", first)


def test_one_ranks_texts(run):
    lines = run(PROGRAMS["Embeddings"]).splitlines()
    scores = [float(line.split()[0]) for line in lines]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_one_has_many_prompts(run):
    lines = run(PROGRAMS["Many prompts"]).splitlines()
    prompts = ["def add(a, b):", "class Queue:", "import os\n", "def is_prime(n):"]
    results = EXPECTED.generate(prompts, max_tokens=24)
    assert lines == [f"{p!r}: {r.text!r}" for p, r in zip(prompts, results, strict=True)]


def test_one_has_an_event_loop(run):
    out = run(PROGRAMS["asyncio, several texts, a stop button"]).splitlines()
    ends = dict(line.split() for line in out if ":" not in line)
    assert ends["whole"] == "length"
    assert ends["left"] in ("cancelled", "length", "stop")
    assert ends["right"] in ("length", "stop")
    assert {line.partition(":")[0] for line in out if ":" in line} == {"left", "right"}


def test_one_is_a_client_of_openais(run, start):
    process = start("serve", "--port=0", "--draft=none", "--threads=1")
    url = next(
        found[1].decode()
        for line in process.stderr
        if (found := re.search(rb" is served on (http://\S+):", line))
    )
    code = PROGRAMS["A program that speaks OpenAI's API"]
    form, text = run(code, OPENAI_BASE_URL=f"{url}/v1").split("\n", 1)
    assert form in ("Python", "C")
    assert text == EXPECTED.generate("class Stack:\n", max_new_tokens=40).text


def test_one_imports_onnxruntime_first(run):
    version, text = run(PROGRAMS["Beside other packages"]).split("\n", 1)
    assert version.startswith("ONNX Runtime 1.")
    assert text.strip()


def test_the_one_of_the_readme(run):
    [code] = PROGRAM.findall((ROOT / "README.md").read_text("utf-8"))
    run(code)
