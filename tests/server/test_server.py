"""The server, as OpenAI's own client sees it."""

from __future__ import annotations

import logging
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from servers import MODEL, PROMPT, SAMPLING, fail_later, refused, serving

from edgespec.errors import DeviceError
from edgespec.llm.llm import inside
from edgespec.runtime.speculation.generation import Round
from edgespec.serve.parts import Part
from edgespec.serve.protocols.completions import CompletionAnswer, CompletionRequest
from edgespec.serve.protocols.protocol import Origin

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 24}
FAILED = 'edgespec_refusals_total{status="500"}'
SAMPLED = {"model": MODEL, "temperature": 1.3, "seed": 7, "max_tokens": 24}


def test_it_says_what_it_has(client, running):
    (listed,) = client.models.list()
    assert listed.id == MODEL
    assert client.models.retrieve(MODEL) == listed
    assert listed.edgespec == {"chat": True, "draft": "lookup", "sampling": SAMPLING}
    assert httpx.get(f"{running.url}/v1/models/").json()["data"][0]["id"] == MODEL
    assert httpx.get(f"{running.url}/health").json() == {"status": "ok"}


@pytest.mark.parametrize("fields", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_completion_is_the_models_own(client, plain, fields):
    given = client.completions.create(prompt=PROMPT, **fields)
    expected = plain.generate(
        PROMPT, max_new_tokens=24, temperature=fields["temperature"], seed=fields.get("seed")
    )
    assert given.choices[0].text == expected.text
    assert (given.model, given.object, given.choices[0].finish_reason) == (
        MODEL,
        "text_completion",
        "length",
    )
    usage = given.usage
    prompt = len(plain.tokenizer.encode(PROMPT))
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, 24)
    assert usage.total_tokens == prompt + 24
    assert given.edgespec["seed"] == fields.get("seed", given.edgespec["seed"])


@pytest.mark.parametrize("fields", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_stream_is_the_same_text(client, fields):
    chunks = list(  # first, since what was said before is expected, and comes in few pieces
        client.completions.create(
            prompt=PROMPT, stream=True, stream_options={"include_usage": True}, **fields
        )
    )
    whole = client.completions.create(prompt=PROMPT, **fields)
    *parts, last, usage = chunks
    assert len(parts) > 3
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert {part.choices[0].finish_reason for part in parts} == {None}
    assert last.choices[0].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1
    rounds = [made for part in parts if (made := getattr(part, "edgespec", None))]
    assert sum(made["tokens"] for made in rounds) == 24 - 1  # the first is the prompt's own
    assert sum(made["rounds"] for made in rounds) == last.edgespec["rounds"]
    assert any(made["drafted"] for made in rounds) == (last.edgespec["accepted"] > 0)
    assert usage.choices == []
    assert usage.usage.total_tokens == whole.usage.total_tokens


def test_an_answer_in_a_conversation(client, plain):
    given = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    expected = plain.chat(MESSAGES, max_new_tokens=24).text
    assert given.choices[0].message.content == expected
    assert given.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "length"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_an_answer_may_fill_the_context(client, plain):
    long = plain.tokenizer.decode(plain.tokenizer.encode(PROMPT * 60)[:490])
    messages = [{"role": "user", "content": long}]
    given = client.chat.completions.create(model=MODEL, messages=messages)
    assert given.choices[0].finish_reason == "length"
    assert given.usage.total_tokens == plain.context_length


def test_a_prompt_of_tokens(client, plain):
    tokens = plain.tokenizer.encode(PROMPT)
    given = client.completions.create(prompt=tokens, **GREEDY)
    assert given.choices[0].text == plain.generate(PROMPT, max_new_tokens=24).text


def test_what_is_left_out_is_as_in_openais_api(client):
    one, other = (client.completions.create(model=MODEL, prompt=PROMPT) for _ in range(2))
    assert one.usage.completion_tokens == 16
    assert one.choices[0].text != other.choices[0].text  # at temperature 1


# Log-probabilities


def test_logprobs_of_a_conversation(client, plain):
    asked = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3, **GREEDY}
    given = client.chat.completions.create(**asked).choices[0].logprobs.content
    chunks = client.chat.completions.create(stream=True, **asked)
    streamed = [
        each
        for chunk in chunks
        if (told := chunk.choices[0].logprobs) is not None
        for each in told.content
    ]
    expected = plain.chat(MESSAGES, max_new_tokens=24, logprobs=3)
    data = b"".join(bytes(each.bytes) for each in given)
    assert data.decode(errors="replace") == expected.text
    assert [each.token for each in streamed] == [each.token for each in given]
    for told in (given, streamed):
        for each, right in zip(told, expected.logprobs, strict=True):
            assert each.logprob == pytest.approx(right.logprob, abs=1e-3)
            assert [top.logprob for top in each.top_logprobs] == pytest.approx(
                [value for _, value in right.top], abs=1e-3
            )
            assert bytes(each.bytes).decode(errors="backslashreplace") == each.token


def test_logprobs_of_a_completion(client, plain):
    given = client.completions.create(prompt=PROMPT, logprobs=2, **GREEDY).choices[0]
    expected = plain.generate(PROMPT, max_new_tokens=24, logprobs=2)
    told = given.logprobs
    assert given.text == expected.text
    assert told.token_logprobs == pytest.approx(
        [each.logprob for each in expected.logprobs], abs=1e-3
    )
    for token, offset, value, top in zip(
        told.tokens, told.text_offset, told.token_logprobs, told.top_logprobs, strict=True
    ):
        assert given.text[offset:].startswith("\ufffd" if token.startswith("bytes:") else token)
        assert top[token] == value == max(top.values())


def test_logprobs_join_to_a_text_that_a_stop_string_ends(client, plain):
    text = plain.generate(PROMPT, max_new_tokens=24).text
    for stop in (text[9:12], text[5], text[11:15]):
        asked = {"prompt": PROMPT, "stop": [stop], "logprobs": 1, **GREEDY}
        given = client.completions.create(**asked).choices[0]
        chunks = [chunk.choices[0] for chunk in client.completions.create(stream=True, **asked)]
        said = ""
        for chunk in chunks:
            said += chunk.text
            for place in chunk.logprobs.text_offset if chunk.logprobs else ():
                assert place < len(said)
        told = [each for chunk in chunks if chunk.logprobs for each in chunk.logprobs.tokens]
        assert told == given.logprobs.tokens
        assert given.logprobs.text_offset == sorted(given.logprobs.text_offset)
        if not any(each.startswith("bytes:") for each in told):
            assert "".join(told) == said == given.text


def test_no_logprobs_where_none_are_asked_for(client):
    assert client.completions.create(prompt=PROMPT, **GREEDY).choices[0].logprobs is None
    chat = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    assert chat.choices[0].logprobs is None


# Drafts


def test_drafts_are_the_requests_choice_within_what_was_loaded(client):
    def ask(**speculative):
        return client.completions.create(
            prompt=PROMPT, extra_body={"speculative": speculative}, **GREEDY
        )

    for source in ("lookup", "recycling"):
        ask(draft=source)  # which they expect again
    ways = [
        ask(),
        ask(draft="lookup", num_draft_tokens=3),
        ask(draft="none"),
        ask(num_draft_tokens=0),
        ask(draft="recycling"),
    ]
    assert len({way.choices[0].text for way in ways}) == 1
    assert [way.edgespec["drafted"] > 0 for way in ways] == [True, True, False, False, True]
    assert ways[1].edgespec["drafted"] <= 3 * ways[1].edgespec["rounds"]
    with pytest.raises(openai.BadRequestError, match="offers none, lookup, recycling"):
        ask(draft="model")


# Many at once


def test_concurrent_clients_get_their_own_answers(client, plain):
    prompts = [f"def function_{number}(x):\n    return " for number in range(12)]
    expected = [plain.generate(prompt, max_new_tokens=24).text for prompt in prompts]

    def ask(number):
        prompt = prompts[number % 12]
        if number % 2:
            return client.completions.create(prompt=prompt, **GREEDY).choices[0].text
        chunks = client.completions.create(prompt=prompt, stream=True, **GREEDY)
        return "".join(chunk.choices[0].text for chunk in chunks)

    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(ask, range(36))) == expected * 3


def test_a_special_token_takes_nothing_from_what_was_drafted(plain):
    origin = Origin.of(MODEL, plain.bundle, plain.tokenizer)
    answer = CompletionAnswer(CompletionRequest(prompt=PROMPT), origin)
    word = plain.tokenizer.encode("def")[-1]
    end = min(plain.tokenizer.special_ids)
    text = plain.tokenizer.decode([word])

    def drafted(*tokens, accepted):
        made = Round(tokens, len(tokens), accepted, "lookup", 0.1)
        [chunk] = answer.part(Part(text * tokens.count(word), (), (made,)))
        return chunk["edgespec"]["drafted"]

    assert drafted(word, end, accepted=1) == len(text)
    assert drafted(word, word, accepted=1) == len(text)
    assert drafted(word, word, accepted=2) == 2 * len(text)  # ended by a stop string
    assert drafted(word, accepted=0) == 0


# What fails


def test_a_failed_device_is_told_without_a_path_and_the_server_goes_on(
    client, llm, running, plain, monkeypatch, caplog
):
    def fail(*_):
        raise DeviceError(f"cannot read {Path.cwd()}/model.onnx")

    monkeypatch.setattr(inside(llm).models["target"], "forward", fail)
    refused(running.post({"prompt": "xyz" * 9}), 500, "the server has failed")
    [record] = caplog.records
    assert f"cannot read {Path.cwd()}" in record.getMessage()
    monkeypatch.undo()
    given = client.completions.create(prompt=PROMPT, **GREEDY)
    assert given.choices[0].text == plain.generate(PROMPT, max_new_tokens=24).text


def test_a_device_that_fails_in_the_midst_of_a_stream_ends_it_with_an_error(
    client, llm, running, monkeypatch, caplog
):
    told = running.metrics().get(FAILED, 0)
    fail_later(monkeypatch, llm)
    chunks = client.completions.create(prompt="class Stack:\n", stream=True, **GREEDY)
    first = next(iter(chunks))
    assert first.choices[0].text
    with pytest.raises(openai.APIError, match="the server has failed") as caught:
        list(chunks)
    assert str(Path.cwd()) not in str(caught.value.body)
    assert running.metrics()[FAILED] == told + 1
    [record] = (each for each in caplog.records if each.levelno >= logging.WARNING)
    assert record.getMessage() == "a text has failed"
    assert f"cannot read {Path.cwd()}" in str(record.exc_info[1])


# Numbers


def test_metrics_count_texts(llm):
    with serving(llm) as running:
        client = running.client()
        given = [client.completions.create(prompt=PROMPT, **GREEDY) for _ in range(2)]
        httpx.post(f"{running.url}/v1/completions", json={})
        numbers = running.metrics()
    assert numbers['edgespec_texts_total{finish_reason="length"}'] == 2
    assert numbers['edgespec_refusals_total{status="400"}'] == 1
    for name in ("rounds", "drafted", "accepted"):
        assert numbers[f"edgespec_{name}_total"] == sum(each.edgespec[name] for each in given)
    assert numbers["edgespec_new_tokens_total"] == 48
    assert numbers["edgespec_prompt_tokens_total"] == 2 * given[0].usage.prompt_tokens
    for name in ("time_to_first_token", "time_per_output_token"):
        assert numbers[f"edgespec_{name}_seconds_count"] == 2
        assert 0 < numbers[f"edgespec_{name}_seconds_sum"] < math.inf
    assert numbers["edgespec_texts_running"] == numbers["edgespec_texts_waiting"] == 0
    assert numbers["edgespec_resident_memory_bytes"] > 1e7
