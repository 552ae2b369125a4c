"""Anthropic's own client."""

from __future__ import annotations

import pytest
from installed import installed
from servers import MODEL, fail_later

MESSAGES = [{"role": "user", "content": "who?"}]
GREEDY = {"temperature": 0}  # which this client has no name for
ASKED = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "extra_body": GREEDY}


@pytest.fixture(scope="module")
def anthropic():
    return installed("anthropic")


@pytest.fixture(scope="module")
def client(anthropic, running):
    return anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0)


def test_the_helper_that_streams_gets_the_message(client, plain):
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        text = "".join(stream.text_stream)
        told = stream.get_final_message()
    right = plain.chat(MESSAGES, max_new_tokens=12, temperature=0).text
    assert right == text == whole.content[0].text == told.content[0].text
    assert told.stop_reason == whole.stop_reason == "max_tokens"
    used = [each.usage.input_tokens + each.usage.cache_read_input_tokens for each in (whole, told)]
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES)
    assert used == [counted.input_tokens] * 2
    assert told.usage.output_tokens == 12


def test_errors_are_its_exceptions(anthropic, client, llm, monkeypatch):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ASKED, "model": "other"})
    with pytest.raises(anthropic.BadRequestError, match="too long"):
        client.messages.create(**{**ASKED, "messages": [{"role": "user", "content": "x " * 4000}]})
    fail_later(monkeypatch, llm)
    with pytest.raises(anthropic.APIStatusError), client.messages.stream(**ASKED) as stream:
        stream.until_done()
