"""A server of several models: which are loaded, who waits for one, and what clients are told."""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree

import httpx
import pytest
from commandline import FAST, fails
from pairs import with_eos
from servers import PLACE, PROMPT, make_bundle, refused, serving, started, until

from edgespec import LLM, bundle
from edgespec.llm.llm import inside
from edgespec.llm.load.options import LoadOptions
from edgespec.runtime.plan import HOST
from edgespec.runtime.sampling import grammar
from edgespec.serve.models import REST, Models, ServedModel

NAMES = ("first", "second", "third")
ASKED = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def bundles(served_bundle, tmp_path_factory):
    """Bundles of models that answer otherwise, by name."""
    folder = tmp_path_factory.mktemp("several")
    made = [served_bundle]
    for architecture in ("qwen2", "qwen3"):
        (folder / architecture).mkdir()
        made.append(make_bundle(folder / architecture, architecture=architecture))
    return dict(zip(NAMES, map(bundle.load, made), strict=True))


@pytest.fixture(scope="module")
def expected(bundles):
    """What each model answers alone."""
    found = {}
    for name, each in bundles.items():
        with LLM(each.path, draft="none", context=256, **PLACE) as llm:
            found[name] = llm.generate(PROMPT, max_new_tokens=8).text
    assert len(set(found.values())) == len(NAMES)
    return found


@pytest.fixture
def several(bundles):
    def make(count=2, most=None, any_name=False, kept=math.inf, rest=REST, **options):
        how = LoadOptions(draft="none", context=256, **{**PLACE, **options})
        served = [ServedModel(name, bundles[name], how) for name in NAMES[:count]]
        return Models(served, most, any_name, kept, rest)

    return make


def text(running, name):
    response = running.post({"model": name, **ASKED})
    assert response.status_code == 200, response.text
    assert response.json()["model"] == name
    return response.json()["choices"][0]["text"]


def states(running):
    listed = httpx.get(f"{running.url}/v1/models").json()["data"]
    return {each["id"]: each["status"]["value"] for each in listed}


def loaded(running):
    return [name for name, state in states(running).items() if state == "loaded"]


def streaming(running, name, tokens=200):
    body = {"model": name, "prompt": PROMPT, "max_tokens": tokens, "stream": True}
    return httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=60)


@pytest.fixture
def paused(monkeypatch):
    """Loading a model waits until it is let go on; names of those that wait."""
    loading = []
    go_on = threading.Event()
    load = ServedModel.load

    def slow(self, *arguments):
        loading.append(self.name)
        assert go_on.wait(60)
        load(self, *arguments)

    monkeypatch.setattr(ServedModel, "load", slow)
    yield loading, go_on
    go_on.set()


def in_use(running):
    """What Ollama's clients hear of the loaded models: when each is to be unloaded."""
    found = httpx.get(f"{running.url}/api/ps").json()["models"]
    return {each["name"].partition(":")[0]: each["expires_at"] for each in found}


def test_a_model_that_nobody_uses_is_unloaded_and_loaded_again(several, expected):
    with serving(several(1, kept=0.3)) as running:
        assert text(running, "first") == expected["first"]
        until(lambda: loaded(running) == [])
        assert text(running, "first") == expected["first"]


def test_a_model_that_nobody_uses_gives_back_what_it_kept_of_texts(several, expected):
    models = several(1, rest=0.3)
    with serving(models) as running:
        for _ in range(2):
            assert text(running, "first") == expected["first"]
            pool = inside(models.served[0].llm).engine.target.pool
            until(lambda pool=pool: not pool.used)
        assert loaded(running) == ["first"]


def test_a_model_stays_while_it_is_used(several):
    models = several(1, kept=0)
    [model] = models.served

    async def use():
        with models.claim(model) as claim, models.claim(model) as other:
            await claim.loaded
            models.end(other)
            models.expect_end(model)
            assert model.llm is not None
        assert model.llm is None

    asyncio.run(use())
    models.stop()


def test_a_request_says_how_long_its_model_stays(several, expected):
    with serving(several(1)) as running:
        assert text(running, "first") == expected["first"]
        assert in_use(running)["first"].startswith("3000-")

        def asked(**body):
            given = running.post({"model": "first", "stream": False, **body}, "/api/generate")
            assert given.status_code == 200, given.text
            return given.json()["done_reason"]

        assert asked(keep_alive="10m") == "load"
        assert not in_use(running)["first"].startswith("3000-")
        assert asked(keep_alive=-1) == "load"
        assert in_use(running)["first"].startswith("3000-")
        assert asked(keep_alive=0) == "unload"
        assert (loaded(running), in_use(running)) == ([], {})
        assert asked(keep_alive=0) == "unload"  # it is not loaded for that
        assert asked(prompt="x", keep_alive=0, raw=True, options={"num_predict": 2}) == "length"
        until(lambda: loaded(running) == [])
        refused = running.post({"model": "first", "keep_alive": "soon"}, "/api/generate")
        assert refused.status_code == 400
        assert "keep_alive is 'soon'" in refused.json()["error"]


def test_each_is_loaded_when_it_is_asked_for_and_answers_as_alone(several, expected):
    with serving(several(3)) as running:
        assert set(states(running).values()) == {"unloaded"}
        assert text(running, "second") == expected["second"]
        assert loaded(running) == ["second"]
        for name in NAMES:
            assert text(running, name) == expected[name]
        assert loaded(running) == [*NAMES]
        assert running.post(ASKED).json()["model"] == "first"  # who names none
        numbers = running.metrics()
        assert numbers['edgespec_model_loaded{model="third"}'] == 1
        assert numbers['edgespec_new_tokens_total{model="first"}'] == 16
        assert numbers['edgespec_texts_total{finish_reason="length",model="second"}'] == 2


def test_both_apis_list_them(several, bundles):
    with serving(several()) as running:
        silent = running.post({"model": "second:latest"}, "/api/generate")
        assert silent.json()["done_reason"] == "load"
        tags = httpx.get(f"{running.url}/api/tags").json()["models"]
        told = [(each["name"], each["status"], each["digest"]) for each in tags]
        assert told == [
            ("first:latest", "unloaded", bundles["first"].digest),
            ("second:latest", "loaded", bundles["second"].digest),
        ]
        (ready,) = httpx.get(f"{running.url}/api/ps").json()["models"]
        assert (ready["name"], ready["context_length"]) == ("second:latest", 256)
        one = httpx.get(f"{running.url}/v1/models/second:latest").json()
        assert (one["id"], one["status"], one["context_length"]) == (
            "second",
            {"value": "loaded"},
            256,
        )


def test_tokens_and_descriptions_need_no_loading(several, bundles):
    with serving(several()) as running:
        body = {"model": "second", "content": "hello"}
        assert running.post(body, "/tokenize").json()["tokens"]
        shown = running.post({"model": "second"}, "/api/show").json()
        assert shown["model_info"]["general.architecture"] == "qwen2"
        assert loaded(running) == []


def test_another_name_is_refused_with_what_helps(several):
    with serving(several()) as running:
        given = running.post({"model": "gpt-5", **ASKED})
        refused(given, 404, "model 'gpt-5' not found: use 'first' or 'second', or start the server")
        assert "--any-model" in given.text
        given = running.post({"model": "first:7b", "prompt": "a"}, "/api/generate")
        assert given.status_code == 404
        assert "--any-model" in given.json()["error"]
        assert loaded(running) == []


def test_the_first_answers_any_name_if_it_may(several, expected):
    with serving(several(any_name=True)) as running:
        for name in ("gpt-5", "first", "qwen:7b"):
            answer = running.post({"model": name, **ASKED}).json()
            assert (answer["model"], answer["choices"][0]["text"]) == ("first", expected["first"])
        assert text(running, "second") == expected["second"]
        body = {"model": "llama3", "prompt": "a", "stream": False, "options": {"num_predict": 2}}
        assert running.post(body, "/api/generate").json()["eval_count"] == 2
        # Each line of an answer of Ollama's repeats the name.
        assert running.post({**body, "model": "x" * 9000}, "/api/generate").status_code == 404


# What gives way


def test_the_one_that_was_not_used_for_longest_gives_way(several, expected):
    with serving(several(3, most=2)) as running:
        for name, left in (
            ("first", ["first"]),
            ("second", ["first", "second"]),
            ("first", ["first", "second"]),
            ("third", ["first", "third"]),
            ("second", ["second", "third"]),
        ):
            assert text(running, name) == expected[name]
            assert loaded(running) == left


def test_clients_at_once_get_what_each_model_answers_alone(several, expected):
    """Models are loaded and unloaded all the time, never more than one at once."""
    names = [*NAMES[:2], "second", "first", "first", "second"] * 4
    models = several(most=1)
    with serving(models, parallel=3, limit=32) as running, ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(text, running, name) for name in names]
        while not all(each.done() for each in answers):
            assert sum(each.llm is not None for each in models.served) <= 1
            time.sleep(0.01)
        assert [each.result() for each in answers] == [expected[name] for name in names]


def test_memory_has_a_model_give_way_by_what_is_planned(several, expected):
    alone = several().served
    need = max(each.total for model in alone for each in model.plan.demands if each.memory == HOST)
    with serving(several(memory=need + 1000)) as running:
        for name in ("first", "second", "first"):
            assert text(running, name) == expected[name]
            assert loaded(running) == [name]
    with serving(several(memory=2 * need)) as running:
        for name in ("first", "second", "first"):
            assert text(running, name) == expected[name]
        assert loaded(running) == ["first", "second"]


def test_memory_that_has_no_room_for_one_alone_is_said(several, bundles, expected):
    """And nobody gives way to it."""
    (first,) = several(1).served
    need = next(each.total for each in first.plan.demands if each.memory == HOST)
    how = LoadOptions(draft="none", context=256, memory=need, sessions=2, **PLACE)
    second = ServedModel("second", bundles["second"], how)
    with serving(Models([first, second])) as running:
        assert text(running, "first") == expected["first"]
        given = running.post({"model": "second", **ASKED})
        assert given.status_code == 503
        assert given.headers["retry-after"] == "1"
        message = given.json()["error"]["message"]
        assert message.startswith("model 'second' cannot be loaded: a context of 256 tokens needs")
        assert loaded(running) == ["first"]


# Who waits


def test_who_asks_first_is_served_first(several, expected):
    """A model in use is waited for, and who asks for it later does not overtake who waits."""
    models = several(most=1)
    order = []
    with serving(models, parallel=4) as running, ThreadPoolExecutor(4) as clients:
        assert text(running, "first") == expected["first"]
        with inside(models.served[0].llm).engine.exclusive():  # no round is made meanwhile
            asked = []
            for number, name in enumerate(("first", "second", "first", "second"), 1):
                asked.append(clients.submit(text, running, name))
                asked[-1].add_done_callback(lambda _, number=number: order.append(number))
                until(lambda number=number: running.queue.running == number)
            assert loaded(running) == ["first"]
            assert models.served[0].claims == 1
        found = [each.result() for each in asked]
        assert found == [expected[name] for name in ("first", "second", "first", "second")]
    assert order in ([1, 2, 4, 3], [1, 4, 2, 3])  # those of a loaded model are made at once


def test_who_leaves_is_not_waited_for(several, expected):
    models = several(most=1)
    with serving(models, parallel=4) as running, ThreadPoolExecutor(2) as clients:
        assert text(running, "first") == expected["first"]
        with inside(models.served[0].llm).engine.exclusive():
            asked = [clients.submit(text, running, "first")]
            until(lambda: models.served[0].claims == 1)
            body = {"model": "second", **ASKED}
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{running.url}/v1/completions", json=body, timeout=0.5)
            until(lambda: running.queue.running == 1)
            asked.append(clients.submit(text, running, "first"))
            until(lambda: models.served[0].claims == 2)
        assert [each.result() for each in asked] == [expected["first"]] * 2
        assert loaded(running) == ["first"]
        cancelled = 'edgespec_texts_total{finish_reason="cancelled",model="second"}'
        assert running.metrics()[cancelled] == 1


def test_others_go_on_while_one_is_loaded(several, expected, paused):
    loading, go_on = paused
    models = several()
    models.served[0].llm = LLM(models.served[0].bundle.path, draft="none", context=256, **PLACE)
    with serving(models, parallel=4) as running, ThreadPoolExecutor(2) as clients:
        with streaming(running, "first") as stream:
            lines = stream.iter_lines()
            next(lines)
            waiting = [clients.submit(text, running, "second") for _ in range(2)]
            until(lambda: loading == ["second"])
            assert states(running) == {"first": "loaded", "second": "loading"}
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert text(running, "first") == expected["first"]
        assert httpx.get(f"{running.url}/health").json() == {"status": "ok"}
        assert not any(each.done() for each in waiting)
        go_on.set()
        assert [each.result() for each in waiting] == [expected["second"]] * 2
        assert loading == ["second"]


def test_a_stream_says_that_it_waits_for_its_model(several, paused):
    loading, go_on = paused
    with serving(several()) as running, streaming(running, "first", 4) as stream:
        lines = stream.iter_lines()
        assert stream.status_code == 200
        assert loading == ["first"]
        go_on.set()
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_the_queue_is_as_long_as_without_loading(several, paused):
    _, go_on = paused
    with serving(several(), parallel=1, limit=1) as running, ThreadPoolExecutor(2) as clients:
        asked = [clients.submit(text, running, "first") for _ in range(2)]
        until(lambda: (running.queue.running, running.queue.waiting) == (1, 1))
        refused(running.post({"model": "second", **ASKED}), 429, "1 requests are waiting")
        go_on.set()
        assert len({each.result() for each in asked}) == 1


# What fails


def test_a_model_that_cannot_be_loaded_is_an_error_of_who_asks(several, bundles, expected):
    models = several(most=1)
    weights = bundles["second"].path / bundles["second"].target.native.data
    with serving(models, parallel=3) as running, ThreadPoolExecutor(3) as clients:
        assert text(running, "first") == expected["first"]
        kept = weights.rename(weights.with_suffix(".kept"))
        try:
            asked = [clients.submit(running.post, {"model": "second", **ASKED}) for _ in range(3)]
            for each in asked:
                refused(each.result(), 500, "model 'second' cannot be loaded: ")
            with streaming(running, "second") as stream:
                assert stream.status_code == 500
        finally:
            kept.rename(weights)
        assert text(running, "first") == expected["first"]
        assert text(running, "second") == expected["second"]
        assert running.queue.running == 0


def test_a_model_whose_folder_is_gone_hides_no_other(several, bundles, expected):
    folder = bundles["second"].path
    with serving(several(most=1)) as running:
        told = [httpx.get(f"{running.url}/{path}").json() for path in ("api/tags", "v1/models")]
        shown = running.post({"model": "second"}, "/api/show").json()
        kept = folder.rename(folder.with_suffix(".gone"))
        try:
            for path, before in zip(("api/tags", "v1/models"), told, strict=True):
                assert httpx.get(f"{running.url}/{path}").json() == before
            assert running.post({"model": "second"}, "/api/show").json() == shown
            assert httpx.get(f"{running.url}/api/ps").status_code == 200
            refused(running.post({"model": "second", **ASKED}), 500, "'second' cannot be loaded: ")
            assert text(running, "first") == expected["first"]
        finally:
            kept.rename(folder)
        assert text(running, "second") == expected["second"]


def test_a_failure_without_a_reason_to_tell_names_nothing(several, monkeypatch):
    def fail(self, *_):
        raise RuntimeError(f"no {Path.cwd()}")

    monkeypatch.setattr(ServedModel, "load", fail)
    with serving(several()) as running:
        refused(running.post({"model": "second", **ASKED}), 500, "the server has failed")


# The end


def test_a_shutdown_refuses_who_waits_for_a_model(several, paused):
    loading, go_on = paused
    with serving(several()) as running, ThreadPoolExecutor(1) as clients:
        asked = clients.submit(running.post, {"model": "second", **ASKED})
        until(lambda: loading == ["second"])
        running.server.should_exit = True
        refused(asked.result(), 503, "shutting down")
        assert running.queue.busy
        go_on.set()


_SLOW = """
import sys, time
from edgespec.cli import main
from edgespec.serve.models import ServedModel
load = ServedModel.load
def slow(self, *arguments):
    if self.name == "other":
        print("it is loaded", file=sys.stderr, flush=True)
        time.sleep(60)
    load(self, *arguments)
ServedModel.load = slow
sys.exit(main())
"""


def test_a_signal_while_a_model_is_loaded_ends_the_command(bundles, tmp_path):
    other = copytree(bundles["second"].path, tmp_path / "other")
    command = [sys.executable, "-P", "-c", _SLOW, "serve", bundles["first"].path, other, "--port=0"]
    with (
        subprocess.Popen(
            [*command, *FAST, "--draft=none", "--context=256"], stderr=subprocess.PIPE, cwd=tmp_path
        ) as process,
        ThreadPoolExecutor(1) as clients,
    ):
        try:
            _, url = started(process)
            body = {"model": "other", **ASKED}
            asked = clients.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=60)
            assert process.stderr.readline() == b"it is loaded\n"
            begin = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert time.monotonic() - begin < 2
            assert asked.result().status_code == 503
        finally:
            process.kill()


# The command


def test_several_models_of_the_command_line(start, bundles, tmp_path, expected):
    copytree(bundles["second"].path, tmp_path / "other")
    process = start(
        "serve",
        bundles["first"].path,
        tmp_path / "other",
        "--max-models=1",
        "--any-model",
        "--port=0",
        *FAST,
        "--draft=none",
        "--context=256",
    )
    _, url = started(process)

    def listed():
        found = httpx.get(f"{url}/v1/models").json()["data"]
        return {each["id"]: each["status"]["value"] for each in found}

    assert listed() == {"bundle": "loaded", "other": "unloaded"}  # the first one is loaded at once
    for name, of in (("other", "second"), ("anything", "first"), ("other:latest", "second")):
        answer = httpx.post(f"{url}/v1/completions", json={"model": name, **ASKED}, timeout=60)
        assert answer.json()["choices"][0]["text"] == expected[of]
    assert listed() == {"bundle": "unloaded", "other": "loaded"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_what_goes_with_one_model_alone_is_said(cli, bundles):
    first = bundles["first"].path
    second = bundles["second"].path
    fails(cli("serve", first, second, "--draft", first), "--draft is", "one model alone")
    fails(cli("serve", first, first, "--port=0"), "two models are called 'bundle'")
    fails(cli("serve", first, "--max-models=0"), "--max-models is 0")
    fails(cli("serve", first, "no-such-model", "--port=0"), "there is no model 'no-such-model'")


def test_what_grammars_need_is_made_before_a_server_answers(served_bundle, tmp_path, monkeypatch):
    """No other thread goes on meanwhile."""
    path = with_eos(served_bundle, tmp_path / "bundle", 0)
    model = ServedModel("first", bundle.load(path), LoadOptions(draft="none", **PLACE))
    monkeypatch.setattr(grammar, "LLTokenizer", None)
    with model.load() as llm:
        assert llm.generate(PROMPT, regex="[ab]c").text[1:] == "c"


def test_what_grammars_need_goes_with_a_model_that_nobody_uses(served_bundle, tmp_path):
    path = with_eos(served_bundle, tmp_path / "bundle", 0)
    model = ServedModel("first", bundle.load(path), LoadOptions(draft="none", **PLACE))
    made = weakref.ref(model._grammars)
    with model.load() as llm:
        expected = llm.generate(PROMPT, regex="[ab]c").text
    del llm
    model.forget()
    gc.collect()
    assert made() is None
    with model.load() as llm:
        assert llm.generate(PROMPT, regex="[ab]c").text == expected
