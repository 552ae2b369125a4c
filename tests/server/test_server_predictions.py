"""OpenAI's predicted outputs, as its own client sends them."""

from __future__ import annotations

import pytest
from servers import MODEL, PROMPT, refused

MESSAGES = [{"role": "user", "content": "hello"}]
TOKENS = 48
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": TOKENS}
SAMPLED = {"model": MODEL, "temperature": 1.3, "seed": 7, "max_tokens": TOKENS}


def predicted(text):
    return {"prediction": {"type": "content", "content": text}}


def counted(usage):
    details = usage.completion_tokens_details
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


@pytest.mark.parametrize("fields", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_an_answer_that_was_predicted(client, fields):
    plain = client.chat.completions.create(messages=MESSAGES, **fields)
    assert counted(plain.usage) == (0, 0)
    text = plain.choices[0].message.content
    for content in (text, [{"type": "text", "text": part} for part in (text[:7], text[7:])]):
        given = client.chat.completions.create(messages=MESSAGES, **predicted(content), **fields)
        assert given.choices[0].message.content == text
        # Random bytes are no characters, so that the text is split into other tokens.
        assert counted(given.usage)[0] > TOKENS / 4
        assert given.edgespec["rounds"] < plain.edgespec["rounds"]


def test_a_stream_that_was_predicted(client):
    asked = {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    plain = client.chat.completions.create(messages=MESSAGES, **GREEDY).choices[0].message.content
    *chunks, last = client.chat.completions.create(**asked, **predicted(plain), **GREEDY)
    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(pieces) == plain
    assert counted(last.usage)[0] > TOKENS / 2


def test_a_completion_that_was_predicted(client):
    plain = client.completions.create(prompt=PROMPT, **GREEDY)
    body = predicted(plain.choices[0].text)
    given = client.completions.create(prompt=PROMPT, extra_body=body, **GREEDY)
    assert given.choices[0].text == plain.choices[0].text
    assert counted(given.usage)[0] > TOKENS / 2


def test_what_openai_refuses_beside_a_prediction_but_we_can_do(client):
    """Log-probabilities, penalties of nothing, and `max_completion_tokens`."""
    plain = client.chat.completions.create(messages=MESSAGES, logprobs=True, **GREEDY)
    asked = {
        "messages": MESSAGES,
        "logprobs": True,
        "n": 1,
        "presence_penalty": 0,
        "model": MODEL,
        "max_completion_tokens": TOKENS,
        "temperature": 0,
    }
    text = plain.choices[0].message.content
    given = client.chat.completions.create(**asked, **predicted(text))
    assert given.choices[0].logprobs == plain.choices[0].logprobs
    assert counted(given.usage)[0] > TOKENS / 2


def test_wrong_and_empty_predictions_change_nothing(client):
    plain = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    for content, rejected in (("zzzz " * 9, True), ("", False), ([], False)):
        given = client.chat.completions.create(messages=MESSAGES, **predicted(content), **GREEDY)
        assert given.choices[0].message.content == plain.choices[0].message.content
        assert (counted(given.usage)[1] > 0) is rejected


def test_drafts_that_are_switched_off_use_no_prediction(client):
    plain = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    body = {"speculative": {"draft": "none"}}
    given = client.chat.completions.create(
        messages=MESSAGES, extra_body=body, **predicted(plain.choices[0].message.content), **GREEDY
    )
    assert given.edgespec["drafted"] == 0
    assert counted(given.usage) == (0, 0)


@pytest.mark.parametrize(
    ("prediction", "reason"),
    [
        ("text", "prediction is 'text'"),
        ({}, "prediction.type is missing"),
        ({"type": "content"}, "prediction.content is missing"),
        ({"type": "file", "content": "a"}, "prediction.type is 'file'"),
        ({"type": "content", "content": 7}, "prediction.content"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content"),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_no_prediction_of_another_form(running, path, prediction, reason):
    asked = {"messages": MESSAGES} if "chat" in path else {"prompt": PROMPT}
    refused(running.post({**asked, "prediction": prediction}, path), 400, reason)
