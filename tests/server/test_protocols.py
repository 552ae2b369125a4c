"""One contract for all APIs that make texts: the same questions, and the same answers."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from apis import APIS
from chats import CLOCK, template
from fillers import make_filler
from pairs import with_eos
from scripts import write
from servers import PLACE, fail_later, serving

from edgespec import LLM

TEMPLATE = template("hermes") + "{{ '</think>' if 0 }}"
SAMPLED = {"temperature": 1.3, "seed": 7, "top_p": 0.9, "min_p": 0.02}
CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
LINE_ENDS = "a\x85b\u2028c\u2029d"
THOUGHT = "<think>\nRome, say.\n</think>\n\n"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A model that can do all that an API may ask for, and whose texts can end."""
    folder = tmp_path_factory.mktemp("able")
    return with_eos(make_filler(folder, TEMPLATE), folder / "ending", 0)


@pytest.fixture(scope="module")
def plain(bundle):
    """What is right."""
    with LLM(bundle, draft="none", **PLACE) as llm:
        yield llm


@pytest.fixture(scope="module")
def llm(bundle):
    with LLM(bundle, draft="lookup", **PLACE) as llm:
        yield llm


@pytest.fixture(scope="module")
def running(llm):
    with serving(llm) as running:
        yield running


@pytest.fixture(params=APIS)
def api(request):
    return APIS[request.param]


def ask(running, api, **asked):
    """The answer in one piece, which a stream says, too."""
    stream = running.post(api.body(**asked, stream=True), api.path)
    assert stream.status_code == 200, stream.text
    given = running.post(api.body(**asked), api.path)
    assert given.status_code == 200, given.text
    assert given.headers["content-type"] == "application/json"
    whole, streamed = api.whole(given.json()), api.streamed(stream)
    assert streamed.made in (None, whole.made)
    assert (streamed.text, streamed.ended) == (whole.text, whole.ended)
    assert (streamed.reasoning, streamed.calls) == (whole.reasoning, whole.calls)
    return whole


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_the_models_own(running, plain, api, options):
    right = api.truth(plain, **options)
    given = ask(running, api, **options)
    assert (given.text, given.made) == (right.text, right.new_tokens)
    assert given.ended == (right.finish_reason == "stop")


def test_a_text_is_as_long_as_asked_for(running, plain, api):
    given = ask(running, api, tokens=3)
    assert api.truth(plain).text.startswith(given.text)
    assert (given.made, given.ended) == (3, False)


@pytest.mark.parametrize("several", [True, False])
def test_a_stop_string_ends_the_text(running, plain, api, several):
    text = api.truth(plain).text
    stop = text[9:12]
    given = ask(running, api, stop=["not there", stop] if several else stop)
    assert (given.text, given.ended) == (text[: text.index(stop)], True)


def test_without_a_seed_sampled_texts_differ(running, api):
    asked = {**SAMPLED, "seed": None}
    assert len({ask_once(running, api, **asked).text for _ in range(3)}) > 1


def ask_once(running, api, **asked):
    return api.whole(running.post(api.body(**asked), api.path).json())


def test_a_text_follows_a_schema(running, monkeypatch, api):
    write(monkeypatch, '{"a": 1}')  # where it could reason before
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    given = ask(running, api, schema=schema, tokens=60, temperature=1.0, seed=3)
    if given.ended:
        jsonschema.validate(json.loads(given.text), schema)
    assert given.text.startswith("{")


def test_no_line_of_a_stream_is_broken_by_what_the_text_has(running, monkeypatch, api):
    """As httpx, requests and Ollama's client split lines."""
    write(monkeypatch, json.dumps(LINE_ENDS, ensure_ascii=False))
    asked = {"schema": {"const": LINE_ENDS}, "tokens": 60}
    assert json.loads(ask(running, api, **asked).text) == LINE_ENDS
    given = running.post(api.body(**asked, stream=True), api.path).text
    assert not set(given) & set(LINE_ENDS[1::2])


@pytest.fixture(params=[name for name, api in APIS.items() if api.thinks])
def thinking(request):
    return APIS[request.param]


@pytest.fixture(params=[name for name, api in APIS.items() if api.calls])
def calling(request):
    return APIS[request.param]


def test_reasoning_comes_apart(running, monkeypatch, thinking):
    write(monkeypatch, f"{THOUGHT}12")
    given = ask(running, thinking, schema={"type": "integer"}, tokens=60)
    assert (given.reasoning, given.text, given.ended) == ("Rome, say.", "12", True)


@pytest.mark.parametrize(
    ("said", "stop", "text", "called"),
    [
        ("It is Rome.", ["never"], "It is Rome.", False),
        ("It is Rome.", ["Rome"], "It is ", False),
        ("It is Rome.", ["\n", "</think>", "say"], "It is Rome.", False),
        (f"Well. {CALL}", ["never"], "Well.", True),
        (f"Well. {CALL}", ["\n", "<tool_call>", "name", "}"], "Well.", True),
        (f"Well. {CALL}", ["ll"], "We", False),
    ],
)
def test_calls_and_reasoning_are_no_text(running, monkeypatch, calling, said, stop, text, called):
    """And stop strings end the text alone."""
    write(monkeypatch, f"{THOUGHT}{said}")
    given = ask(running, calling, tools=[CLOCK], stop=stop, tokens=200)
    calls = (("clock", {}),) if called else ()
    assert (given.reasoning, given.text, given.calls) == ("Rome, say.", text, calls)
    assert given.ended


# What is refused: what is asked, the status, and the reason.
REFUSALS = {
    "a temperature below zero": ({"temperature": -1}, 400, "temperature is -1"),
    "a huge temperature": ({"temperature": 1e9}, 400, "temperature is 1000000000.0"),
    "a temperature in words": ({"temperature": "warm"}, 400, "temperature is 'warm'"),
    "a part above one": ({"top_p": 3}, 400, "top_p is 3"),
    "a huge seed": ({"seed": 1 << 64}, 400, "seed is 18446744073709551616"),
    "a seed below all": ({"seed": -2}, 400, "seed is -2"),
    "half a token": ({"tokens": 1.5}, 400, "is 1.5"),
    "an empty stop string": ({"stop": ["b", ""]}, 400, ".1 is ''"),
    "no switch": ({"stream": "yes"}, 400, "stream is 'yes'"),
    "another model": ({"model": "other"}, 404, "model 'other' not found: use 'tiny'"),
    "a schema that means nothing": ({"schema": {"type": "none"}}, 400, "json_schema cannot be"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_wrong_is_refused_with_a_reason(running, api, name):
    asked, status, reason = REFUSALS[name]
    refused(running.post(api.body(**asked), api.path), api, status, reason)


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"{", "not UTF-8 JSON"), (b"[]", "the body is []"), (b"{}", "is missing: give it")],
    ids=str,
)
def test_bodies_that_are_none(running, api, data, reason):
    refused(running.post(data, api.path), api, 400, reason)


def refused(response, api, status, reason):
    assert response.status_code == status, response.text
    assert reason in api.error(response.json())
    assert str(Path.cwd()) not in response.text
    assert len(response.content) < 500


def test_a_device_that_fails_ends_a_stream_with_an_error(running, api, llm, monkeypatch, caplog):
    fail_later(monkeypatch, llm)
    given = running.post(api.body(stream=True), api.path)
    assert api.failure(given) == "the server has failed: its log has the details"
    refused(running.post(api.body(), api.path), api, 500, "the server has failed")
    assert "a text has failed" in [record.getMessage() for record in caplog.records]
