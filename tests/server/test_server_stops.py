"""Stop strings that name special tokens, by every route that takes them."""

from __future__ import annotations

import pytest
from chats import FORMS, TOOLS, template
from pairs import with_eos
from scripts import write
from servers import MODEL, PLACE, PROMPT, make_bundle, serving

from edgespec import LLM

TOKEN = "<|endoftext|>"
GRAMMAR = {"grammar": f'start: "ab" {TOKEN} "cd"'}
STOPS = [
    ([TOKEN], "ab"),
    (["never", TOKEN], "ab"),
    ([f"b{TOKEN}"], "a"),
    ([f"ab{TOKEN}c"], ""),
    ([f"{TOKEN}x", "d"], "abc"),
]


@pytest.fixture(scope="module")
def llm(served_bundle, tmp_path_factory):
    """A model with a special token besides the one that ends its texts."""
    path = with_eos(served_bundle, tmp_path_factory.mktemp("stops") / "bundle", 1)
    with LLM(path, draft="lookup", **PLACE) as llm:
        yield llm


@pytest.fixture(scope="module")
def running(llm):
    with serving(llm) as running:
        yield running


@pytest.mark.parametrize(("stop", "text"), STOPS)
def test_a_stop_string_may_name_a_special_token(running, llm, stop, text):
    asked = {"model": MODEL, "stop": stop, "max_tokens": 20, **GRAMMAR}
    completion = running.post({**asked, "prompt": PROMPT}).json()["choices"][0]
    messages = [{"role": "user", "content": "hello"}]
    chat = running.post({**asked, "messages": messages}, "/v1/chat/completions").json()
    [said] = chat["choices"]
    result = llm.generate(PROMPT, stop=stop, **GRAMMAR)
    assert (completion["text"], completion["finish_reason"]) == (text, "stop")
    assert (said["message"]["content"], said["finish_reason"]) == (text, "stop")
    assert (result.text, result.finish_reason) == (text, "stop")


def test_without_such_a_string_the_token_is_no_part_of_the_text(llm):
    for stop in ((), ("never",), ("<|im_start|>",), ("<|endof",)):
        assert llm.generate(PROMPT, stop=stop, **GRAMMAR).text == "abcd"


CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
FUNCTIONS = [{"type": "function", **tool["function"]} for tool in TOOLS]
# Not all of what a script says here is the answer.
THOUGHT = "<think>\nRome, say.\n</think>\n\n"
CALLED = f"{THOUGHT}Well. {FORMS['hermes'].call}"


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    """A server of a model that reasons and calls."""
    folder = tmp_path_factory.mktemp("thinking")
    source = template("hermes") + "{{ '</think>' if 0 }}"
    path = with_eos(make_bundle(folder, source), folder / "ending", 0)
    with LLM(path, draft="lookup", **PLACE) as llm, serving(llm) as running:
        yield running


def answers(running, stop):
    """Reasoning, text, calls and why a script ended, by route."""
    body = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS}
    [choice] = running.post({**body, "stop": stop}, CHAT).json()["choices"]
    said = choice["message"]
    calls = [each["function"]["name"] for each in said.get("tool_calls", ())]
    yield said.get("reasoning_content"), said["content"] or "", calls
    options = {"options": {"stop": stop}, "stream": False}
    said = running.post({**body, **options}, "/api/chat").json()["message"]
    calls = [each["function"]["name"] for each in said.get("tool_calls", ())]
    yield said.get("thinking"), said["content"], calls
    items = {"model": MODEL, "input": "hello", "tools": FUNCTIONS, "stop": stop}
    output = running.post(items, "/v1/responses").json()["output"]
    told = {each["type"]: each.get("content", [{}])[0].get("text", "") for each in output}
    calls = [each["name"] for each in output if each["type"] == "function_call"]
    yield told.get("reasoning"), told.get("message", ""), calls


@pytest.mark.parametrize(
    ("script", "stop", "text", "calls"),
    [
        (f"{THOUGHT}It is Rome.", ["Rome"], "It is ", []),
        (f"{THOUGHT}It is Rome.", ["\n", "</think>", "say"], "It is Rome.", []),
        (CALLED, ["\n", "<tool_call>", "name", "Rome", "}"], "Well.", ["get_weather"]),
        (CALLED, ["ll"], "We", []),
    ],
)
def test_stops_end_the_answer_and_nothing_else(thinking, monkeypatch, script, stop, text, calls):
    write(monkeypatch, script)
    for answer in answers(thinking, stop):
        assert answer == ("Rome, say.", text, calls)


def test_ollamas_generate_tells_reasoning_apart_too(thinking, monkeypatch):
    write(monkeypatch, f"{THOUGHT}12")
    body = {"model": MODEL, "prompt": "hello", "stream": False, "options": {"stop": ["Rome", "2"]}}
    given = thinking.post({**body, "format": {"type": "integer"}}, "/api/generate").json()
    assert (given["thinking"], given["response"], given["done_reason"]) == (
        "Rome, say.",
        "1",
        "stop",
    )
    assert given["context"]
