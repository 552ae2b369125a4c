"""A server of several models: which give way, who waits for one, what fails, and the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree

import httpx
import pytest
from commandline import FAST
from servers import PLACE, refused, serving, started, until
from several_models import ASKED, NAMES, loaded, states, streaming, text

from edgespec import LLM
from edgespec.errors import InputError
from edgespec.llm.llm import inside
from edgespec.llm.load.options import LoadOptions
from edgespec.runtime.plan import HOST
from edgespec.serve.models import Models
from edgespec.serve.served_model import ServedModel

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
from edgespec.serve.served_model import ServedModel
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
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert asked.result().status_code == 503
        finally:
            process.kill()


def test_what_cannot_be_kept_of_one_model_does_not_hold_up_another(
    several, expected, tmp_path, monkeypatch, caplog
):
    closed = []
    close = LLM.close

    def full(*_):
        raise InputError("the disk is full")

    monkeypatch.setattr(LLM, "save_draft_memory", full)
    monkeypatch.setattr(LLM, "close", lambda llm: closed.append(close(llm)))
    with serving(several(2, 1, draft="recycling", draft_memory=tmp_path / "kept")) as running:
        for name in ("first", "second", "first"):
            assert text(running, name) == expected[name]
        assert caplog.messages == ["the disk is full"] * 2
        assert len(closed) == 2
