"""`edgespec batch`: answers, errors line by line, and what becomes of it when it is stopped."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from batches import FEW, PROMPTS, act_after, answers, completion, interrupt, usual, write
from commandline import FAST, fails
from openai.types import Completion
from openai.types.chat import ChatCompletion
from rich.console import Console

from edgespec import LLM
from edgespec.batch.answering import seed_of
from edgespec.batch.files import only_writer
from edgespec.errors import DeviceError
from edgespec.llm.options import in_conversation
from edgespec.llm.stream import Stream
from edgespec.models.embedded import BUNDLE
from edgespec.store import progress

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture
def asked(tmp_path):
    return write(tmp_path / "in.jsonl", usual())


@pytest.fixture
def batch(cli, asked, tmp_path):
    """Run the command on `asked`, or another input, in this process."""

    def run(*more, given=asked, out="out.jsonl"):
        return cli("batch", given, "-o", tmp_path / out, *FEW, *more)

    return run


@pytest.fixture
def undisturbed(batch, tmp_path):
    """The output of a run that nothing has disturbed."""
    result = batch(out="undisturbed.jsonl")
    assert result.code == 0, result.err
    return (tmp_path / "undisturbed.jsonl").read_bytes()


def left(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir() if path.name != "undisturbed.jsonl")


def texts(path):
    return [line["response"]["body"]["choices"][0]["text"] for line in answers(path)]


# Answers


def test_answers_are_the_models_own(batch, tmp_path):
    result = batch()
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith(f"12 answers in {tmp_path / 'out.jsonl'}: ")
    assert left(tmp_path) == ["in.jsonl", "out.jsonl"]
    found = answers(tmp_path / "out.jsonl")
    llm = LLM(draft="none", device="cpu", threads=1)
    for number, line in enumerate(found):
        name = f"request-{number}"
        seed = (0, seed_of(name), 5)[number % 3]
        given = {"seed": seed} if number % 3 else {"temperature": 0}
        how = in_conversation(llm.sampling, given)
        alone = llm.generate(PROMPTS[number], max_new_tokens=16, **how)
        assert (line["custom_id"], line["error"]) == (name, None)
        assert line["response"]["status_code"] == 200
        body = Completion.model_validate(line["response"]["body"], strict=True)
        assert (body.model, body.usage.completion_tokens) == ("python-7m", alone.new_tokens)
        assert body.choices[0].text == alone.text
        if number % 3:
            assert line["response"]["body"]["edgespec"] == {"seed": seed}
    assert len({line["id"] for line in found}) == len(found) == 12


def test_a_bundle_of_the_users_chats(cli, served_bundle, tmp_path):
    chat = {
        "custom_id": "one",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "mine",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 4,
            "temperature": 0,
            "logprobs": True,
        },
    }
    given = write(tmp_path / "in", [chat])
    out = tmp_path / "out"
    result = cli("batch", served_bundle, given, "-o", out, "--model-name=mine", *FEW)
    assert result.code == 0, result.err
    llm = LLM(served_bundle, draft="none", device="cpu", threads=1)
    alone = llm.chat(chat["body"]["messages"], max_new_tokens=4)
    body = ChatCompletion.model_validate(answers(out)[0]["response"]["body"], strict=True)
    assert body.choices[0].message.content == alone.text
    assert len(body.choices[0].logprobs.content) == 4
    assert body.id.startswith("chatcmpl-")


def test_what_is_wrong_is_said_in_its_line(batch, tmp_path):
    url = {"custom_id": "url", "method": "POST", "url": "/v1/moderations", "body": {}}
    good = completion("good", PROMPTS[0])
    wrong = [
        ("{", 400, "line 1: the line is not UTF-8 JSON"),
        (completion("stream", "x", stream=True), 400, "stream is true: leave it out"),
        (good, 200, None),
        ({**good, "custom_id": "get", "method": "GET"}, 400, "line 4: method is 'GET'"),
        (url, 400, "line 5: url is '/v1/moderations'"),
        (completion("model", "x", model="gpt-4o"), 404, "use 'python-7m'"),
        (completion("long", [1] * 5000), 400, "longer than the model's context length"),
        (completion("type", 3), 400, "prompt is 3"),
        (completion("unknown", "x", min_tokens=2), 400, "min_tokens is 2, which is not supported"),
        (completion("rule", "x", regex="("), 400, "regex"),
        ({"method": "POST"}, 400, "line 11: custom_id is missing"),
        ({**good, "custom_id": "more", "body": 1}, 400, "line 12: body is 1"),
        (completion("none", ""), 400, "prompt"),
        ('{"custom_id": "\\ud800"}', 400, "line 14: the line is not UTF-8 JSON"),
        (b'{"custom_id": "\xff"}', 400, "line 15: the line is not UTF-8 JSON"),
        ("[" * 1000, 400, "line 16: the line is not UTF-8 JSON"),
        (completion("choices", "x", n=2), 400, "the line asks for 2 texts: ask for one"),
        (completion("prompts", ["x", "y", "z"]), 400, "the line asks for 3 texts"),
        (completion("last", PROMPTS[1]), 200, None),
    ]
    given = write(tmp_path / "wrong", [line for line, *_ in wrong])
    result = batch(given=given)
    assert result.code == 4
    assert result.err.startswith("19 answers (17 of them errors) in ")
    assert len(result.err.splitlines()) == 1
    found = answers(tmp_path / "out.jsonl")
    for (line, status, message), answer in zip(wrong, found, strict=True):
        assert answer["response"]["status_code"] == status, answer
        if isinstance(line, dict):
            assert answer["custom_id"] == line.get("custom_id")
        if message is None:
            assert answer["error"] is None
            continue
        error = answer["response"]["body"]["error"]
        assert message in error["message"]
        assert set(error) == {"message", "type", "param", "code"}
        assert set(answer["error"]) == {"code", "message"}
        assert answer["error"]["message"] == error["message"]


def test_the_number_at_once_changes_no_answer(batch, undisturbed, tmp_path):
    for parallel in (1, 3):
        assert batch("--parallel", parallel, "--restart").code == 0
        assert (tmp_path / "out.jsonl").read_bytes() == undisturbed


def test_as_many_are_made_at_once_as_are_asked_for(batch, monkeypatch):
    at_once = set()
    most = []
    finish = Stream.finish
    together = threading.Barrier(3, timeout=60)

    def counted(self):
        at_once.add(self)
        most.append(len(at_once))
        if len(most) <= 3:
            together.wait()
        result = finish(self)
        at_once.discard(self)
        return result

    monkeypatch.setattr(Stream, "finish", counted)
    assert batch("--parallel=3").code == 0
    assert (max(most), len(most)) == (3, 12)


# Going on


@pytest.fixture
def stopped(batch, undisturbed, monkeypatch, interruptible):
    """A batch that Ctrl-C has stopped behind its third answer."""
    with monkeypatch.context() as patch:
        act_after(patch, 3, interrupt)
        return batch("--parallel=2")


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(
    stopped, batch, undisturbed, tmp_path, monkeypatch
):
    assert stopped.code == 130
    *_, last = stopped.err.splitlines()
    assert last.startswith("stopped: ")
    assert "of 12 requests are answered, in " in last
    assert "the same command goes on" in last
    assert left(tmp_path) == ["in.jsonl", "out.jsonl.partial"]
    _, *kept = answers(tmp_path / "out.jsonl.partial")
    assert 3 <= len(kept) <= 4  # the other text may have ended in the same round
    begun = []
    begin = LLM.submit
    monkeypatch.setattr(LLM, "submit", lambda *a, **b: begun.append(1) or begin(*a, **b))
    assert batch().code == 0
    assert len(begun) == 12 - len(kept)
    assert (tmp_path / "out.jsonl").read_bytes() == undisturbed
    assert left(tmp_path) == ["in.jsonl", "out.jsonl"]


@posix
def test_a_request_to_terminate_is_heard_too(batch, undisturbed, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        act_after(patch, 2, lambda: signal.raise_signal(signal.SIGTERM))
        assert batch().code == 130
    assert batch().code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == undisturbed


def test_a_second_ctrl_c_does_not_wait_and_loses_nothing(
    batch, undisturbed, monkeypatch, tmp_path, interruptible
):
    def twice():
        interrupt()
        interrupt()

    with monkeypatch.context() as patch:
        act_after(patch, 3, twice)
        result = batch()
    assert (result.code, result.err) == (130, "")
    assert len(answers(tmp_path / "out.jsonl.partial")) == 4
    assert batch().code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == undisturbed


def test_other_inputs_and_models_are_refused(stopped, batch, cli, asked, tmp_path, served_bundle):
    kept = (tmp_path / "out.jsonl.partial").read_bytes()
    remedy = "or begin again with --restart"
    fails(batch("--model-name=other"), "begun with another model name", remedy)
    out = tmp_path / "out.jsonl"
    fails(cli("batch", served_bundle, asked, "-o", out, *FEW), "begun with another bundle", remedy)
    fails(batch("--context=100"), "a context of ", "go on with 100: give --context ", remedy)
    asked.write_bytes(asked.read_bytes() + b"\n")
    fails(batch(), "begun with another input", remedy)
    assert (tmp_path / "out.jsonl.partial").read_bytes() == kept
    assert left(tmp_path) == ["in.jsonl", "out.jsonl.partial"]
    write(asked, usual()[:2])
    assert batch("--restart").code == 0
    assert len(answers(out)) == 2


def test_it_goes_on_with_the_context_that_it_was_begun_with(stopped, batch, tmp_path, monkeypatch):
    """Which depends on free memory where none is asked for."""
    path = tmp_path / "out.jsonl.partial"
    start, *kept = answers(path)
    write(path, [start | {"context": 300}, *kept])
    contexts = []
    answer = LLM.submit

    def noted(self, *arguments, **options):
        contexts.append(self.context_length)
        return answer(self, *arguments, **options)

    monkeypatch.setattr(LLM, "submit", noted)
    assert batch().code == 0
    assert set(contexts) == {300}


def test_another_engine_is_told(stopped, batch, tmp_path):
    path = tmp_path / "out.jsonl.partial"
    start, *kept = answers(path)
    write(path, [start | {"engine": "webgpu"}, *kept])
    result = batch()
    assert result.code == 0
    told = f"the first {len(kept)} answers were made on webgpu and the others are made on "
    assert told + "cpu" in result.err


def test_what_is_finished_is_not_made_again(batch, asked, tmp_path, monkeypatch):
    write(asked, [completion("a", PROMPTS[0]), "{"])
    assert batch().code == 4
    before = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl.partial").write_bytes(b"as if it had ended before it deleted this")
    monkeypatch.setattr(LLM, "submit", None)
    result = batch()
    assert result.code == 4
    assert "2 answers (1 of them errors)" in result.err
    assert "were there already" in result.err
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert left(tmp_path) == ["in.jsonl", "out.jsonl"]


def test_files_that_are_not_this_batchs_output_stay(batch, asked, tmp_path):
    out = tmp_path / "out.jsonl"
    remedy = "exists and is not this batch's output: give another name, or replace it"
    for text in (b"", b"what a user wrote\n", b"{}\n"):
        out.write_bytes(text)
        fails(batch(), remedy)
        assert out.read_bytes() == text
    out.unlink()
    assert batch().code == 0
    whole = out.read_bytes()
    out.write_bytes(whole[: whole.index(b"\n") + 1])
    fails(batch(), remedy)
    write(asked, usual()[:5])
    fails(batch(), remedy)
    assert batch("--restart").code == 0
    assert len(answers(out)) == 5


def test_two_at_once_are_refused(batch, tmp_path):
    with only_writer(tmp_path / "out.jsonl"):
        fails(batch(), "another process is writing ", "out.jsonl: wait for it, or give another")
        fails(batch("--restart"), "another process is writing ")
    assert batch().code == 0


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--parallel=0"], "--parallel is 0: give a whole number of at least 1"),
        (["--sessions=0"], "--sessions is 0"),
        (["-o", "missing/out"], "--output missing/out: its folder does not exist"),
    ],
)
def test_options_are_checked(batch, words, part):
    fails(batch(*words), part)


def test_the_output_may_not_be_the_input_or_a_folder(cli, asked, tmp_path):
    before = asked.read_bytes()
    fails(cli("batch", asked, "-o", asked, "--restart", *FEW), "is the input")
    fails(cli("batch", asked, "-o", tmp_path, "--restart", *FEW), "is not a regular file")
    fails(cli("batch", tmp_path / "none", "-o", tmp_path / "out", *FEW), "No such file")
    fails(cli("batch", asked, *FEW), "-o")
    assert asked.read_bytes() == before


def test_without_its_packages_the_command_names_them(asked, tmp_path):
    code = (
        "import sys; sys.modules['pydantic_core'] = None;"
        "from edgespec.cli import main; sys.exit(main(['batch', 'in.jsonl', '-o', 'out']))"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert 'batches need the package pydantic_core: pip install ".[serve]" in a' in run.stderr


# Faults


def fail_once(monkeypatch, number, error):
    """Let the text number `number` fail."""
    finish = Stream.finish
    calls = iter(range(100))

    def failing(self):
        if next(calls) == number:
            raise error
        return finish(self)

    monkeypatch.setattr(Stream, "finish", failing)


@pytest.mark.parametrize(("error", "code"), [(DeviceError("gone"), 2), (MemoryError("full"), 3)])
def test_what_would_fail_every_text_ends_it_and_loses_nothing(
    batch, undisturbed, tmp_path, monkeypatch, error, code
):
    with monkeypatch.context() as patch:
        fail_once(patch, 6, error)
        fails(batch("--parallel=2"), str(error), code=code)
    assert left(tmp_path) == ["in.jsonl", "out.jsonl.partial"]
    assert len(answers(tmp_path / "out.jsonl.partial")) > 3
    assert batch().code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == undisturbed


def test_a_fault_of_ours_costs_one_answer(batch, undisturbed, tmp_path, monkeypatch):
    fail_once(monkeypatch, 6, RuntimeError("a bug"))
    result = batch("--parallel=1")
    assert result.code == 4
    assert "line 7: internal error: RuntimeError: a bug" in result.err
    found = answers(tmp_path / "out.jsonl")
    expected = map(json.loads, undisturbed.splitlines())
    different = [line for line, other in zip(found, expected, strict=True) if line != other]
    assert [line["response"]["status_code"] for line in different] == [500]
    assert different[0]["custom_id"] == "request-6"
    assert "a bug" not in json.dumps(different)


# The bar


def test_the_bar_shows_texts_speed_and_time_left(batch, monkeypatch):
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    assert batch().code == 0
    text = shown.getvalue()
    assert "0 of 12 texts" in text
    assert " tokens/s " in text
    assert "-:--:--" in text


def test_nothing_is_drawn_where_nobody_looks(batch):
    result = batch()
    assert len(result.err.splitlines()) == 1
    assert "\x1b" not in result.err


# Kills


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills of POSIX")
@pytest.mark.parametrize("draft", ["none", "recycling"])
def test_kills_lose_nothing_and_repeat_nothing(start, tmp_path, draft):
    """As the out-of-memory killer or a power cut, at any moment of the work."""
    requests = [
        {**each, "custom_id": f"{each['custom_id']}-{copy}"}
        for copy in range(5)
        for each in usual(60)
    ]
    given = write(tmp_path / "in.jsonl", requests)
    command = ["batch", BUNDLE, given, "--parallel=4", *FAST, f"--draft={draft}"]
    process = start(*command, "-o", "undisturbed.jsonl")
    assert process.communicate(timeout=120)[1].startswith(b"60 answers in undisturbed.jsonl: ")
    rng = random.Random(7)
    partial = tmp_path / "out.jsonl.partial"
    seen = []
    for _ in range(5):
        process = start(*command, "-o", "out.jsonl")
        size = _size(partial)
        more = rng.randrange(1, 7000)
        deadline = time.monotonic() + 60
        while process.poll() is None and _size(partial) < size + more:
            assert time.monotonic() < deadline
        time.sleep(rng.random() / 50)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        seen.append(len(_finished(partial)))
        assert process.returncode == -signal.SIGKILL
        if rng.random() < 0.5:  # what a power cut makes of the last line
            os.truncate(partial, _size(partial) - rng.randrange(1, 20))
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1] < 60
    process = start(*command, "-o", "out.jsonl")
    assert process.communicate(timeout=120)[1].startswith(b"60 answers in out.jsonl: ")
    assert process.returncode == 0
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()
    names = {"in.jsonl", "out.jsonl", "undisturbed.jsonl"}
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == names


def _size(path):
    return path.stat().st_size if path.exists() else 0


def _finished(path):
    """The numbers of the lines that have their answers, each of which has only one."""
    _, *kept = answers(path)
    numbers = [line["line"] for line in kept]
    assert len(set(numbers)) == len(numbers)
    return numbers
