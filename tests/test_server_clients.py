"""What clients send and read besides what they must, as the libraries in use do."""

from __future__ import annotations

import httpx
import pytest
from openai.types.chat import ChatCompletionMessage
from servers import MODEL, PLACE, PROMPT, serving

from edgespec import LLM

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
SITE = "http://localhost:3000"
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def plain(served_bundle):
    """What is right, and who answers."""
    return LLM(served_bundle, draft="none", **PLACE)


@pytest.fixture(scope="module")
def running(plain):
    with serving(plain) as running:
        yield running


@pytest.fixture(scope="module")
def client(running):
    return running.client()


def test_messages_in_parts_and_by_developers(client, plain):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    given = client.chat.completions.create(
        messages=messages, response_format={"type": "text"}, n=1, user="me",
        model=MODEL, temperature=0, max_completion_tokens=9,
    )  # fmt: skip
    assert given.choices[0].message.content == plain.chat(MESSAGES, max_new_tokens=9).text


def test_what_changes_no_text_may_be_said(client, plain):
    said = {
        "logit_bias": {}, "tools": [], "tool_choice": "none", "parallel_tool_calls": False,
        "functions": None, "function_call": None, "modalities": ["text"], "metadata": {"of": "me"},
        "store": False, "service_tier": "auto", "safety_identifier": "me",
        "prompt_cache_key": "mine", "prediction": {"type": "content", "content": "hi"},
    }  # fmt: skip
    given = client.chat.completions.create(messages=MESSAGES, extra_body=said, **GREEDY)
    assert given.choices[0].message.content == plain.chat(MESSAGES, max_new_tokens=24).text
    said = {"logit_bias": {}, "echo": False, "suffix": ""}
    given = client.completions.create(prompt=PROMPT, extra_body=said, **GREEDY)
    assert given.choices[0].text == plain.generate(PROMPT, max_new_tokens=24).text


def test_a_temperature_of_almost_nothing_is_none(client, plain):
    given = client.completions.create(prompt=PROMPT, **{**GREEDY, "temperature": 1e-8})
    assert given.choices[0].text == plain.generate(PROMPT, max_new_tokens=24).text


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


@pytest.mark.parametrize("wrapped", [[PROMPT], [[5, 6, 7]]], ids=["text", "tokens"])
def test_a_prompt_alone_in_a_list_is_that_prompt(client, wrapped):
    one, other = (
        client.completions.create(prompt=prompt, **GREEDY) for prompt in (wrapped, wrapped[0])
    )
    assert one.choices[0].text == other.choices[0].text


def test_events_say_what_they_are_written_in(running):
    body = {"prompt": PROMPT, "stream": True, "max_tokens": 1}
    assert running.post(body).headers["content-type"] == "text/event-stream; charset=utf-8"


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
