"""`stop_loops` in requests, which ends texts that repeat themselves; the page asks for it."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
from repeating import make_repeating
from servers import MODEL, PLACE, serving

from edgespec import LLM

ASKED = {"temperature": 0, "max_tokens": 400}
ROUTES = {
    "/v1/completions": {"prompt": "hello"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    path = make_repeating(tmp_path_factory.mktemp("repeating"))
    with LLM(path, draft="lookup", **PLACE) as llm, serving(llm) as running:
        yield running


def chunks(response):
    lines = response.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("path", ROUTES)
def test_a_text_that_repeats_itself_ends_where_that_is_asked_for(running, path):
    asked = ROUTES[path] | ASKED
    whole = running.post(asked, path).json()
    off = running.post({**asked, "stop_loops": False}, path).json()
    ended = running.post({**asked, "stop_loops": True}, path).json()
    assert whole["usage"]["completion_tokens"] == off["usage"]["completion_tokens"] == 400
    assert ended["usage"]["completion_tokens"] < 400
    # A client of OpenAI's API knows no other word.
    assert [each["choices"][0]["finish_reason"] for each in (whole, ended)] == 2 * ["length"]
    assert ended["edgespec"]["looped"] is True
    assert "looped" not in whole["edgespec"]
    last = chunks(running.post({**asked, "stop_loops": True, "stream": True}, path))[-1]
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["edgespec"]["looped"] is True


def test_responses_are_cut_likewise(running):
    asked = {"input": "hello", "temperature": 0, "max_output_tokens": 400}
    for stop_loops in (True, False):
        told = running.post({**asked, "stop_loops": stop_loops}, "/v1/responses").json()
        assert told["incomplete_details"] == {"reason": "max_output_tokens"}
        assert (told["usage"]["output_tokens"] < 400) == stop_loops


def test_another_value_is_refused(running):
    told = running.post({"prompt": "a", "stop_loops": "yes"})
    assert told.status_code == 400
    assert "stop_loops" in told.json()["error"]["message"]


def test_ollamas_answer_is_cut_only_by_length(running):
    options = {"temperature": 0, "num_predict": 400}
    asked = {"model": MODEL, "prompt": "hello", "options": options, "stream": False}
    told = running.post(asked, "/api/generate").json()
    assert (told["done_reason"], told["eval_count"]) == ("length", 400)


def test_the_page_asks_for_it():
    source = (files("edgespec.serve") / "web" / "reply.js").read_text("utf-8")
    assert "stop_loops: true" in source
