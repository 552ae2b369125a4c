"""The programs of the README and the documents run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from chats import template
from checkout import ROOT
from checkpoints import make_checkpoint
from embeddings import PROMPTS, make_embedding
from encoders import make_ranker
from ggufs import write_gguf
from programs import finished
from towers import save_pictured

from edgespec import LLM

PROGRAM = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
TITLE = re.compile(r"^#+ (.*)$", re.M)


def programs(page):
    """Yields the programs of a page, and the titles above them."""
    text = page.read_text("utf-8")
    for found in PROGRAM.finditer(text):
        *_, title = TITLE.findall(PROGRAM.sub("", text[: found.start()]))
        yield title, found[1]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL = [each for page in PAGES for each in programs(page)]
PROGRAMS = dict(ALL)
EXPECTED = LLM(threads=1, draft="none")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the models that programs name: random ones, of which bundles are made."""
    folder = tmp_path_factory.mktemp("home")
    make_checkpoint(folder / "chat", "llama", eos_token_id=0)
    fields = {"tokenizer.chat_template": template("hermes")}
    write_gguf(folder / "chat", folder / "model.gguf", **fields)
    make_embedding(folder / "qwen3-embedding", "qwen3", prompts=PROMPTS)
    fields = {"qwen3.pooling_type": 3, "tokenizer.ggml.add_eos_token": True}
    write_gguf(folder / "qwen3-embedding", folder / "embedding.gguf", **fields)
    make_ranker(folder / "bge-reranker", "xlm-roberta", pad_token_id=1)
    return folder


@pytest.fixture
def run(home):
    def run(program, **environment):
        return finished("-P", "-c", program, folder=home, **environment).stdout

    return run


def test_every_program_is_run_below():
    run = re.findall(r'PROGRAMS\["(.+?)"\]', Path(__file__).read_text("utf-8"))
    assert sorted(run) == sorted(title for title, _ in ALL)


def test_one_generates(run):
    said, text = run(PROGRAMS["Generate"]).split("\n", 1)
    assert said.startswith("<LLM python-7m: target on ")
    expected = EXPECTED.generate("def gcd(a, b):", max_tokens=64)
    assert text.startswith(f"{expected.text}\n{expected.new_tokens} tokens, ")
    assert text.endswith(f" a second, {expected.finish_reason}\n")


def test_one_ranks(run):
    said = run(PROGRAMS["Reranking"]).splitlines()
    assert len(said) == 2
    assert all(re.match(r"0\.\d{3} (def|The|class) ", line) for line in said)


def test_one_streams(run):
    out = run(PROGRAMS["Stream"])
    how = {"max_tokens": 80, "temperature": 0.8, "seed": 1}
    assert out.startswith(EXPECTED.generate("class Stack:", **how).text + "\n")
    assert re.search(r"\n\d+ of \d+ drafted tokens were accepted\n$", out)


def test_one_chats_and_goes_on_from_a_file(run, home):
    out = run(PROGRAMS["Chat"])
    reused, tokens = map(int, re.findall(r"(\d+) of (\d+) tokens were known\n$", out)[0])
    assert tokens / 4 < reused < tokens  # an answer in random letters may be read again
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


def test_one_has_an_embedding_of_a_query(run):
    assert len(re.findall(r"-?\d\.\d+", run(PROGRAMS["Embedding models"]))) == 2


def test_one_shows_an_image(run, home):
    pillow = pytest.importorskip("PIL.Image", reason='pip install ".[images]"')
    pillow.new("RGB", (40, 32), "orange").save(home / "cat.jpg")
    save_pictured(home / "gemma", "gemma3")
    assert run(PROGRAMS["Images"]).strip()


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


def test_two_are_clients_of_openais(run, start):
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
    text = run(PROGRAMS["The server"].replace("http://127.0.0.1:8080", url))
    assert text == EXPECTED.generate("def gcd(a, b):\n", max_new_tokens=64).text


def test_one_imports_onnxruntime_first(run):
    version, text = run(PROGRAMS["Beside other packages"]).split("\n", 1)
    assert version.startswith("ONNX Runtime 1.")
    assert text.strip()


def test_the_one_of_the_readme(run):
    run(PROGRAMS["Try it"])
