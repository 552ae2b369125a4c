"""The server, as Ollama's own client for Python sees it."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel, Field
from servers import MODEL, PROMPT

from edgespec.serve import endpoint

ollama = pytest.importorskip("ollama")

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0, "num_predict": 24}


class Person(BaseModel, extra="forbid"):
    name: str = Field(max_length=5)
    old: bool


@pytest.fixture(scope="module")
def client(running):
    return ollama.Client(running.url)


def test_lines_that_say_how_much_was_read_are_empty_pieces(client, plain, monkeypatch):
    monkeypatch.setattr(endpoint, "_READING", 0.0)
    long = [{"role": "user", "content": "what is it? " * 40}]
    told = list(client.chat(MODEL, long, options=GREEDY, stream=True))
    assert told[0].message.content == ""
    text = plain.chat(long, max_new_tokens=24).text
    assert "".join(part.message.content for part in told) == text
    told = list(client.generate(MODEL, long[0]["content"], options=GREEDY, stream=True))
    assert (told[0].response, told[-1].done) == ("", True)


def test_chat_whole_and_streamed(client, plain):
    expected = plain.chat(MESSAGES, max_new_tokens=24)
    streamed = list(client.chat(MODEL, MESSAGES, options=ollama.Options(**GREEDY), stream=True))
    given = client.chat(MODEL, MESSAGES, options=GREEDY)
    assert given.message.content == expected.text
    assert (given.done, given.done_reason) == (True, "length")
    assert (given.prompt_eval_count, given.eval_count) == (expected.prompt_tokens, 24)
    assert min(given.total_duration, given.prompt_eval_duration, given.eval_duration) > 0
    *parts, last = streamed
    assert len(parts) > 3
    assert "".join(part.message.content for part in parts) == expected.text
    assert (last.done, last.eval_count) == (True, 24)


def test_generate_whole_and_streamed(client, plain):
    expected = plain.generate(PROMPT, max_new_tokens=24).text
    assert client.generate(MODEL, PROMPT, raw=True, options=GREEDY).response == expected
    parts = client.generate(MODEL, PROMPT, raw=True, options=GREEDY, stream=True)
    assert "".join(part.response for part in parts) == expected
    first = client.generate(MODEL, "hello", system="be brief", options=GREEDY)
    assert first.response == plain.chat(MESSAGES, max_new_tokens=24).text
    second = client.generate(MODEL, "so?", context=first.context, options=GREEDY)
    assert second.context[: len(first.context)] == first.context


def test_an_answer_is_sent_back_as_it_came(client, plain):
    answer = client.chat(MODEL, MESSAGES, options=GREEDY).message
    further = [*MESSAGES, answer, {"role": "user", "content": "so?"}]
    said = [*MESSAGES, {"role": "assistant", "content": answer.content}, further[-1]]
    given = client.chat(MODEL, further, options=GREEDY)
    assert given.message.content == plain.chat(said, max_new_tokens=24).text


def test_a_schema_of_pydantics_holds(ending):
    client = ollama.Client(ending.url)
    for seed in range(3):
        given = client.chat(
            MODEL,
            MESSAGES,
            format=Person.model_json_schema(),
            options={"seed": seed, "num_predict": 100},
        )
        assert given.done_reason == "stop"
        Person.model_validate_json(given.message.content)


def test_models(client, plain):
    (listed,) = client.list().models
    assert listed.model == f"{MODEL}:latest"
    assert listed.details.family == "llama"
    (loaded,) = client.ps().models
    assert (loaded.context_length, loaded.size_vram) == (plain.context_length, 0)
    shown = client.show(listed.model)
    assert shown.modelinfo["llama.context_length"] == plain.context_length
    assert "completion" in shown.capabilities
    assert client.chat(listed.model, MESSAGES, options=GREEDY).model == listed.model


def test_several_at_once(running, plain):
    prompts = [f"def function_{number}(x):\n    return " for number in range(6)]

    async def ask(client, prompt):
        parts = await client.generate(MODEL, prompt, raw=True, options=GREEDY, stream=True)
        return "".join([part.response async for part in parts])

    async def work():
        async with ollama.AsyncClient(running.url) as client:
            whole = await client.chat(MODEL, MESSAGES, options=GREEDY)
            return whole, await asyncio.gather(*(ask(client, prompt) for prompt in prompts))

    whole, texts = asyncio.run(work())
    assert whole.message.content == plain.chat(MESSAGES, max_new_tokens=24).text
    assert texts == [plain.generate(prompt, max_new_tokens=24).text for prompt in prompts]


def test_errors_are_the_clients_own(client):
    with pytest.raises(ollama.ResponseError, match="model 'other' not found") as caught:
        client.chat("other", MESSAGES)
    assert caught.value.status_code == 404
    for stream in (False, True):
        with pytest.raises(ollama.ResponseError, match=r"options\.top_p is 3") as caught:
            list(client.generate(MODEL, PROMPT, options={"top_p": 3}, stream=stream))
        assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="/api/pull is not supported"):
        client.pull(MODEL)
