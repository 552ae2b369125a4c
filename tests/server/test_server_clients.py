"""What clients send and read besides what they must, as the libraries in use do."""

from __future__ import annotations

import json
import math

import httpx
import pytest
from openai.types.chat import ChatCompletionMessage
from servers import MODEL, PROMPT, serving

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
SITE = "http://localhost:3000"
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 24}


def test_messages_in_parts_and_by_developers(client, plain):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    given = client.chat.completions.create(
        messages=messages,
        response_format={"type": "text"},
        n=1,
        user="me",
        model=MODEL,
        temperature=0,
        max_completion_tokens=9,
    )
    assert given.usage.completion_tokens == 9
    assert given.choices[0].message.content == plain.chat(MESSAGES, max_new_tokens=9).text


def test_what_changes_no_text_may_be_said(client, plain):
    said = {
        "logit_bias": {},
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "functions": None,
        "function_call": None,
        "modalities": ["text"],
        "metadata": {"of": "me"},
        "store": False,
        "service_tier": "auto",
        "safety_identifier": "me",
        "prompt_cache_key": "mine",
        "prediction": {"type": "content", "content": "hi"},
        "n": 1,
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "reasoning_effort": "low",
        "seed": -1,
        "verbosity": "low",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {},
        "audio": None,
        "web_search_options": None,
        "cache_prompt": True,
        "top_k": -1,
        "stream_options": {"include_obfuscation": False},
    }
    given = client.chat.completions.create(messages=MESSAGES, extra_body=said, **GREEDY)
    assert given.choices[0].message.content == plain.chat(MESSAGES, max_new_tokens=24).text
    said = {"logit_bias": {}, "echo": False, "suffix": ""}
    given = client.completions.create(prompt=PROMPT, extra_body=said, **GREEDY)
    assert given.choices[0].text == plain.generate(PROMPT, max_new_tokens=24).text


def test_what_llama_vscode_asks_for_when_it_edits(running, plain):
    """As its llama-server.ts writes it, with samplers that are off."""
    body = {
        "messages": MESSAGES,
        "stream": False,
        "cache_prompt": True,
        "samplers": "edkypmxt",
        "temperature": 0.8,
        "dynatemp_range": 0,
        "dynatemp_exponent": 1,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "typical_p": 1,
        "xtc_probability": 0,
        "xtc_threshold": 0.1,
        "repeat_last_n": 64,
        "repeat_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "dry_multiplier": 0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": -1,
        "max_tokens": -1,
        "timings_per_token": False,
    }
    given = running.post({**body, "seed": 4, "max_tokens": 12}, "/v1/chat/completions").json()
    expected = plain.chat(
        MESSAGES, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=4, max_new_tokens=12
    )
    assert given["choices"][0]["message"]["content"] == expected.text
    assert running.post(body, "/v1/chat/completions").status_code == 200


ASKED = {"temperature": 0.6, "top_k": 4, "repetition_penalty": 1.3}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ASKED),
        ({"top_k": -1}, {**ASKED, "top_k": 0}),
        ({"temperature": 1.5}, {**ASKED, "temperature": 1.5}),
        ({"temperature": 0}, {}),
    ],
    ids=str,
)
def test_what_a_request_leaves_out_is_as_the_models_authors_ask(
    client, plain, llm, monkeypatch, fields, expected
):
    monkeypatch.setattr(llm, "sampling", ASKED)
    asked = {"model": MODEL, "prompt": PROMPT, "seed": 3, "max_tokens": 24, **fields}
    given = client.post("/completions", body=asked, cast_to=object)
    made = plain.generate(PROMPT, seed=3, max_new_tokens=24, **expected)
    assert given["choices"][0]["text"] == made.text


def test_a_temperature_of_almost_nothing_is_none(client, plain):
    given = client.completions.create(prompt=PROMPT, **{**GREEDY, "temperature": 1e-8})
    assert given.choices[0].text == plain.generate(PROMPT, max_new_tokens=24).text


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": PROMPT, "top_p": 0, "temperature": 0.9, "max_tokens": 9}),
        ("/v1/chat/completions", {"messages": MESSAGES, "top_p": 0.0, "max_tokens": 9}),
        ("/v1/responses", {"input": MESSAGES, "top_p": 0, "max_output_tokens": 9}),
        ("/api/chat", {"messages": MESSAGES, "options": {"top_p": 0, "num_predict": 9}}),
    ],
)
def test_a_nucleus_of_nothing_is_the_likeliest_token(running, plain, path, fields):
    given = running.post({"model": MODEL, "stream": False, **fields}, path)
    ask, asked = (plain.generate, PROMPT) if "prompt" in fields else (plain.chat, MESSAGES)
    text = ask(asked, max_new_tokens=9).text
    assert json.dumps(text, ensure_ascii=False) in given.text


def test_notes_of_clients_in_messages_are_passed_over(running, plain):
    part = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}
    noted = [
        {**MESSAGES[0], "id": 7, "cache_control": {"type": "ephemeral"}, "opts": {"visible": True}},
        {"role": "user", "content": [part], "id": "msg-1", "images": [], "tool_call_id": None},
    ]
    given = running.post({"messages": noted, **GREEDY}, "/v1/chat/completions").json()
    expected = plain.chat(MESSAGES, max_new_tokens=24).text
    assert given["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize(
    "answer", [{"content": None}, {}, {"content": None, "tool_calls": [], "refusal": None}], ids=str
)
def test_an_answer_that_says_nothing_is_an_empty_text(running, plain, answer):
    def about(answer):
        return [MESSAGES[1], {"role": "assistant", **answer}, {"role": "user", "content": "so?"}]

    given = running.post({"messages": about(answer), **GREEDY}, "/v1/chat/completions").json()
    expected = plain.chat(about({"content": ""}), max_new_tokens=24).text
    assert given["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize("word", ["max_tokens", "max_completion_tokens"])
def test_minus_one_token_is_as_many_as_the_context_holds(running, plain, word):
    asked = {"messages": MESSAGES, "temperature": 0, word: -1}
    given = running.post(asked, "/v1/chat/completions").json()
    assert given["usage"]["total_tokens"] == plain.context_length
    assert given["choices"][0]["finish_reason"] == "length"


def test_minus_one_token_of_a_completion_is_not_what_is_usual(running, plain):
    asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": -1}
    assert running.post(asked).json()["usage"]["total_tokens"] == plain.context_length


def test_a_seed_of_minus_one_is_any(running):
    asked = {"prompt": PROMPT, "temperature": 1.0, "seed": -1}
    seeds = {running.post(asked).json()["edgespec"]["seed"] for _ in range(3)}
    assert len(seeds) == 3


# Of an answer, what litellm and OpenAI's own `parse` add to it.
def _noted(answer):
    return {**answer.to_dict(), "provider_specific_fields": {"refusal": None}, "tool_calls": []}


def _parsed(answer):
    return {**answer.to_dict(), "parsed": {"a": [1]}, "annotations": []}


@pytest.mark.parametrize(
    "written", [ChatCompletionMessage.to_dict, ChatCompletionMessage.model_dump, _noted, _parsed]
)
def test_an_answer_goes_into_the_next_request_as_it_came(client, plain, written):
    answer = client.chat.completions.create(messages=MESSAGES, **GREEDY).choices[0].message
    said = [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "more"}]
    given = client.chat.completions.create(messages=[*MESSAGES, written(answer), said[1]], **GREEDY)
    expected = plain.chat([*MESSAGES, *said], max_new_tokens=24).text
    assert given.choices[0].message.content == expected


DRY = {"dry_multiplier": 100.0, "dry_base": 9.0, "logit_bias": {"5": 100.0}}
LLAMA_CPP = {"repeat_penalty": 1.5, "presence_penalty": 1.0, "logit_bias": [[5, 9], [7, False]]}
SAMPLINGS = [
    *[
        {name: each}
        for name, each in {
            "top_p": 0.4,
            "top_k": 2,
            "min_p": 0.5,
            "repetition_penalty": 0.05,
            "presence_penalty": -2.0,
            "frequency_penalty": -2.0,
            "logit_bias": {"5": 20.0},
        }.items()
    ],
    {"repetition_penalty": 0.05, "repeat_last_n": 2},
    {"typical_p": 0.2},
    {"top_n_sigma": 0.5},
    {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    {"mirostat": 1, "mirostat_tau": 2.0, "mirostat_eta": 0.5},
    {"mirostat": 2, "mirostat_tau": 1.0},
]


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        *[(each, each) for each in SAMPLINGS],
        ({"nsigma": 0.5}, {"top_n_sigma": 0.5}),
        ({"typical": 0.2}, {"typical_p": 0.2}),
        ({"mirostat_mode": 2, "mirostat_tau": 1.0}, {"mirostat": 2, "mirostat_tau": 1.0}),
        (LLAMA_CPP, {
            "repetition_penalty": 1.5, "presence_penalty": 1.0, "repeat_last_n": 64,
            "logit_bias": {5: 9, 7: -math.inf},
        }),
    ],
    ids=str,
)  # fmt: skip
def test_each_option_of_sampling_reaches_the_text(client, plain, fields, options):
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "temperature": 2.0, "seed": 7}
    given, without = (
        client.completions.create(extra_body=said, **asked).choices[0].text for said in (fields, {})
    )
    expected = plain.generate(PROMPT, max_new_tokens=24, temperature=2.0, seed=7, **options)
    assert given == expected.text != without


@pytest.mark.parametrize(
    ("breakers", "found"),
    [
        ([], ()),
        ('"\\n", ":"', ("\n", ":")),
        ('["a", "b"]', ("a", "b")),
        ("abc", ("abc",)),
    ],
)
def test_repetitions_end_at_breakers_as_clients_write_them(client, plain, breakers, found):
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0.0}
    given, without = (
        client.completions.create(extra_body=said, **asked).choices[0].text
        for said in ({**DRY, "dry_sequence_breakers": breakers}, {"logit_bias": {"5": 100.0}})
    )
    expected = plain.generate(PROMPT, max_new_tokens=12, **DRY, dry_sequence_breakers=found)
    assert given == expected.text != without


def test_logprobs_without_likely_tokens(client):
    given = client.chat.completions.create(messages=MESSAGES, logprobs=True, **GREEDY)
    told = given.choices[0].logprobs.content
    assert len(told) == 24
    assert {(each.logprob < 0, *each.top_logprobs) for each in told} == {(True,)}


@pytest.mark.parametrize("wrapped", [[PROMPT], [[5, 6, 7]]], ids=["text", "tokens"])
def test_a_prompt_alone_in_a_list_is_that_prompt(client, wrapped):
    one, other = (
        client.completions.create(prompt=prompt, **GREEDY) for prompt in (wrapped, wrapped[0])
    )
    assert one.choices[0].text == other.choices[0].text


def test_events_say_what_they_are_written_in(running):
    body = {"prompt": PROMPT, "stream": True, "max_tokens": 1}
    headers = running.post(body).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_usage_is_streamed_to_those_who_ask_for_it(running, options):
    body = {"prompt": PROMPT, "stream": True, "max_tokens": 1, "stream_options": options}
    assert '"usage"' not in running.post(body).text


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": PROMPT, "n": 2}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
    ],
)
def test_all_chunks_before_the_one_with_the_usage_have_none(running, path, asked):
    told = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3}
    given = running.post({**asked, **told}, path).text
    chunks = [json.loads(line[6:]) for line in given.splitlines() if line.startswith("data: {")]
    *others, last = (chunk["usage"] for chunk in chunks)
    assert len(others) > 2
    assert set(others) == {None}
    assert last["completion_tokens"] == 3 * asked.get("n", 1)


def test_a_stream_of_an_empty_text_has_its_role_and_its_end(client, plain):
    text = plain.chat(MESSAGES, max_new_tokens=24).text
    fields = {"messages": MESSAGES, "stop": text[:2], "stream": True, **GREEDY}
    first, last = client.chat.completions.create(**fields)
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert (last.choices[0].delta.content, last.choices[0].finish_reason) == ("", "stop")


# Pages of other sites


def preflight(running, origin):
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    return httpx.options(f"{running.url}/v1/chat/completions", headers=headers)


def test_pages_of_the_sites_that_are_named_may_ask(plain):
    with serving(plain, api_key="secret", origins=[SITE]) as running:
        asked = preflight(running, SITE)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == SITE
        assert "authorization" in asked.headers["access-control-allow-headers"]
        assert preflight(running, "http://evil.example").status_code == 400
        # Pages read why they are refused, too.
        for key, status in (("secret", 200), ("wrong", 401)):
            headers = {"origin": SITE, "authorization": f"Bearer {key}"}
            given = httpx.get(f"{running.url}/v1/models", headers=headers)
            assert given.status_code == status
            assert given.headers["access-control-allow-origin"] == SITE


def test_no_other_page_may_ask_by_default(running):
    assert preflight(running, SITE).status_code == 405
    given = httpx.get(f"{running.url}/v1/models", headers={"origin": SITE})
    assert "access-control-allow-origin" not in given.headers
