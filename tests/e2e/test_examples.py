"""The programs of docs/examples run, and do what their first lines promise."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
import threading
import time
from contextlib import nullcontext
from functools import reduce
from importlib import import_module
from importlib.metadata import distributions
from importlib.util import find_spec
from itertools import count
from operator import add

import httpx
import pytest
from checkout import ROOT
from displays import display
from jsonschema import validate
from pairs import with_eos
from programs import finished
from servers import PLACE
from windows import STOPPED, TOO_LONG

from edgespec import LLM
from edgespec.llm.llm import inside
from edgespec.runtime.speculation.engine import Engine

EXAMPLES = ROOT / "docs" / "examples"


def needs(*packages: str) -> pytest.MarkDecorator:
    """Returns the mark of tests of a program that needs packages, by their names on PyPI."""
    known = {re.sub("[-_.]+", "-", each.name).lower() for each in distributions()}
    missing = [each for each in packages if each not in known]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@pytest.fixture
def model(served_bundle):
    """A model that chats, whose texts end by length alone."""
    return str(served_bundle)


@pytest.fixture(scope="module")
def ending(served_bundle, tmp_path_factory):
    """A model that chats and ends its texts, as those in a given form must."""
    return str(with_eos(served_bundle, tmp_path_factory.mktemp("ending") / "bundle", 0))


def expected(model, *conversation, **options):
    """The answer without drafts."""
    with LLM(model, draft="none", **PLACE) as llm:
        return llm.chat(*conversation, temperature=0, **options)


@pytest.fixture
def main(monkeypatch):
    """Runs a program in this process; returns what it returns."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        return runpy.run_path(str(EXAMPLES / name))["main"]()

    return run


# Windows

NO_TK = pytest.mark.skipif(find_spec("_tkinter") is None, reason="Python has no tkinter")
TK = pytest.param("tk", marks=NO_TK)
QT = pytest.param("qt", marks=needs("pyside6-essentials"))


def seen(does, toolkit, model):
    """What a user saw on a window; see `windows.User`."""
    program = EXAMPLES / f"{toolkit}_chat.py"
    with display() if toolkit == "tk" else nullcontext("") as name:
        shown = {"DISPLAY": name} if name else {"QT_QPA_PLATFORM": "offscreen"}
        done = finished(ROOT / "tests/support/windows.py", does, toolkit, program, model, **shown)
    assert "Traceback" not in done.stderr  # of a thread
    return json.loads(done.stdout)


@pytest.mark.parametrize("toolkit", [TK, QT])
def test_a_window_shows_answers_and_errors_and_closes_during_an_answer(toolkit, model):
    refused, shown, messages, end = seen("chats", toolkit, model)
    assert refused.startswith(f"You: {TOO_LONG.strip()}\n\nthe prompt is too long")
    [question, answer] = (message["content"] for message in messages)
    assert [question, end] == [STOPPED, "cancelled"]
    assert answer
    # A window passes over characters that cannot be shown, as a random model writes them.
    expected = f"{refused}You: {STOPPED}\n\n{answer}\n\n"
    assert [*filter(str.isprintable, shown)] == [*filter(str.isprintable, expected)]


@pytest.mark.parametrize("toolkit", [TK, QT])
def test_a_window_tells_what_is_wrong_with_a_model(toolkit, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    shown, may_ask = seen("reads", toolkit, tmp_path / "model.gguf")
    assert "model.gguf" in shown
    assert not may_ask


# A folder of files


def test_files_become_lines_of_json_and_what_is_done_is_not_done_again(
    main, ending, tmp_path, capsys
):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"This is {name}.")
    (tmp_path / "long.txt").write_text(TOO_LONG)
    output = tmp_path / "cards.jsonl"
    assert main("extract_folder.py", ending, tmp_path, output) == 1
    assert "long.txt: the prompt is too long" in capsys.readouterr().err
    lines = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [line.pop("file") for line in lines] == ["a.txt", "b.txt"]
    schema = runpy.run_path(str(EXAMPLES / "extract_folder.py"))["Card"].model_json_schema()
    for line in lines:
        validate(line, schema)
    (tmp_path / "long.txt").unlink()
    (tmp_path / "c.txt").write_text("This came later.")
    assert main("extract_folder.py", ending, tmp_path, output) == 0
    files = [json.loads(line)["file"] for line in output.read_text("utf-8").splitlines()]
    assert files == ["a.txt", "b.txt", "c.txt"]


# FastAPI


@pytest.fixture
def route(model, monkeypatch):
    """The address of the route, and the model behind it."""
    import uvicorn

    monkeypatch.setenv("MODEL", model)
    monkeypatch.syspath_prepend(EXAMPLES)
    app = import_module("fastapi_app").app
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/chat", app.state.llm
    server.should_exit = True
    thread.join()


def asked(text, **more):
    return {"json": {"messages": [{"role": "user", "content": text}], **more}}


@needs("fastapi", "uvicorn")
def test_a_route_streams_refuses_and_forgets_who_left(route, monkeypatch):
    address, llm = route
    with httpx.stream("POST", address, **asked("hello", max_tokens=60)) as answer:
        assert answer.status_code == 200
        assert len(list(answer.iter_text())) > 3
    refused = httpx.post(address, **asked(TOO_LONG))
    assert refused.status_code == 422
    assert "longer than the model's context" in refused.json()["detail"]
    passes, left, make = count(1), threading.Event(), Engine._make_pass

    def until_left(*arguments):
        """Makes a pass; from the tenth on, only once the client has left."""
        assert next(passes) < 10 or left.wait(60)
        return make(*arguments)

    monkeypatch.setattr(Engine, "_make_pass", until_left)
    with httpx.stream("POST", address, **asked("hello", max_tokens=4096)) as answer:
        text = answer.iter_text()  # the client leaves once nobody has it any more
        next(text)
        assert inside(llm).engine.running
    left.set()
    until = time.monotonic() + 30
    while inside(llm).engine.running:
        assert time.monotonic() < until
        time.sleep(0.01)


# LangChain


@needs("langchain-core")
def test_a_chain_has_a_model_in_this_process(main, ending, capsys):
    main("langchain_chat.py", ending, "Name three rivers.")
    assert "Verdict(good=" in capsys.readouterr().out
    chat = runpy.run_path(str(EXAMPLES / "langchain_chat.py"))["ChatEdgespec"](model=ending)
    greedy = {"temperature": 0, "max_tokens": 30}
    whole = expected(ending, "hello", max_tokens=30)
    answer = chat.invoke("hello", **greedy)
    chunks = list(chat.stream("hello", **greedy))
    assert len(chunks) > 2
    for each in (answer, reduce(add, chunks)):
        assert each.text == whole.text
        assert each.usage_metadata["output_tokens"] == whole.new_tokens
    stop = whole.text[5:8]
    cut = expected(ending, "hello", max_tokens=30, stop=stop)
    assert chat.invoke("hello", stop=[stop], **greedy).text == cut.text != whole.text


# The command llm


@pytest.fixture
def llm(tmp_path, monkeypatch):
    """Runs the command `llm`, which finds the plugin by its entry point."""
    from click.testing import CliRunner
    from setuptools import build_meta

    folder = shutil.copytree(EXAMPLES / "llm_plugin", tmp_path / "plugin")
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        build_meta.prepare_metadata_for_build_wheel(str(folder))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "user"))
    from llm.cli import cli

    def run(*arguments, **stdin):
        return CliRunner().invoke(cli, [*map(str, arguments)], **stdin)

    return run


@needs("llm", "setuptools")
def test_the_command_llm_has_a_plugin(llm, model, ending):
    greedy = ("-m", "edgespec", "-o", "temperature", 0, "-o", "max_tokens", 30)
    first = expected(model, "hello", max_tokens=30)
    said = llm("prompt", "hello", *greedy, "-o", "model", model)
    assert said.output == f"{first.text}\n"
    talk = [{"role": "user", "content": "hello"}, first.message, {"role": "user", "content": "on"}]
    more = llm("prompt", "on", "--continue", *greedy, "-o", "model", model)
    assert more.output == f"{expected(model, talk, max_tokens=30).text}\n"
    form = {"type": "object", "properties": {"old": {"type": "boolean"}}, "required": ["old"]}
    form["additionalProperties"] = False  # a random model's text could reach the longest
    formed = llm(
        "prompt", "hello", "-m", "edgespec", "-o", "model", ending, "--schema", json.dumps(form)
    )
    validate(json.loads(formed.output), form)
    refused = llm("prompt", TOO_LONG, *greedy, "-o", "model", model)
    assert refused.exit_code == 1
    assert "the prompt is too long" in refused.output


# Ray


@pytest.mark.slow
@needs("ray", "pandas", "pyarrow")
def test_workers_of_ray_answer_a_file(model, tmp_path):
    prompts = ["hello", "def add(a, b):", "class Queue:"]
    source = tmp_path / "prompts.jsonl"
    source.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in prompts))
    finished(EXAMPLES / "ray_batch.py", model, source, tmp_path / "out", "--max-tokens", 20)
    lines = [
        json.loads(line)
        for file in (tmp_path / "out").glob("*.json*")
        for line in file.read_text("utf-8").splitlines()
    ]
    answers = {line["prompt"]: line["answer"] for line in lines}
    assert answers == {each: expected(model, each, max_tokens=20).text for each in prompts}
