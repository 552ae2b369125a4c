"""How much of a prompt was read, as clients see it while it is read."""

from __future__ import annotations

import json

import httpx
import pytest
from servers import MODEL, serving

from edgespec.llm.result import PromptProgress
from edgespec.serve import endpoint, parts

LONG = [5 + number % 200 for number in range(400)]
CHAT = [{"role": "user", "content": "what is it? " * 40}]
FIELDS = {"max_tokens": 2, "temperature": 0, "stream": True}


def events(running, path, body):
    given = running.post({**FIELDS, **body}, path).text.splitlines()
    return [json.loads(line[6:]) for line in given if line.startswith("data: {")]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/chat/completions", {"messages": CHAT, "stream_options": {"include_usage": True}}),
    ],
)
def test_progress_is_told_as_llama_cpp_tells_it(running, llm, path, body):
    found = events(running, path, {**body, "return_progress": True, "prompt_cache_key": "mine"})
    told = [event["prompt_progress"] for event in found if "prompt_progress" in event]
    total = told[0]["total"]
    processed = [each["processed"] for each in told]
    assert len(processed) > 1
    assert processed == sorted(set(processed))
    assert processed[-1] == total
    assert {(each["total"], each["cache"]) for each in told} == {(total, 0)}
    times = [each["time_ms"] for each in told]
    assert times == sorted(times)
    choices = [
        choice for event in found if "prompt_progress" in event for choice in event["choices"]
    ]
    assert not any(each["text"] if "text" in each else each["delta"]["content"] for each in choices)
    plain = events(running, path, body)
    assert not any("prompt_progress" in event for event in plain)
    again = events(running, path, {**body, "return_progress": True, "prompt_cache_key": "mine"})
    [last] = [event["prompt_progress"] for event in again if "prompt_progress" in event]
    assert (last["processed"], last["cache"]) == (total, total - 1)


def test_of_others_prompts_no_progress_tells_how_much_was_known():
    def told(read, reused, own):
        return parts._as_known(PromptProgress(read, 1000, reused), own)

    assert told(600, 0, 0) == PromptProgress(600, 1000, 0)
    assert told(600, 200, 300) == PromptProgress(600, 1000, 200)
    assert told(1000, 500, 0) is None
    for reused in range(300, 360):  # what is read in a pass is the same, whatever was known
        assert told(reused + 128, reused, 256) == PromptProgress(256 + 128, 1000, 256)
        assert told(reused + 191, reused, 0) == PromptProgress(128, 1000, 0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/responses", {"input": CHAT[0]["content"], "max_output_tokens": 2}),
        ("/v1/chat/completions", {"messages": CHAT}),
    ],
)
def test_a_stream_says_in_comments_how_far_it_is(llm, monkeypatch, path, body):
    monkeypatch.setattr(endpoint, "_READING", 0.0)
    asked = {name: value for name, value in FIELDS.items() if "output" not in str(body)}
    with serving(llm) as running:
        given = running.post({"stream": True, **asked, **body, "prompt_cache_key": "mine"}, path)
    comments = [line for line in given.text.splitlines() if line.startswith(": reading ")]
    numbers = [(int(line.split()[2]), int(line.split()[4])) for line in comments]
    assert len(numbers) > 1
    assert numbers == sorted(numbers)
    assert numbers[-1][0] == numbers[-1][1]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_lines_of_ollamas_streams_do_too(llm, monkeypatch, path):
    monkeypatch.setattr(endpoint, "_READING", 0.0)
    body = {"model": MODEL, "options": {"num_predict": 2, "temperature": 0}}
    body |= {"messages": CHAT} if path == "/api/chat" else {"prompt": CHAT[0]["content"]}
    with serving(llm) as running, httpx.stream("POST", running.url + path, json=body) as given:
        lines = [json.loads(line) for line in given.iter_lines()]
    told = [line for line in lines if "prompt_progress" in line]
    assert told
    assert lines[: len(told)] == told
    for line in told:
        assert not line["done"]
        assert not (line["response"] if "response" in line else line["message"]["content"])
        assert 0 < line["prompt_progress"]["processed"] <= line["prompt_progress"]["total"]
