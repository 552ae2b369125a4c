"""Conversations that are too long, whose oldest messages are left out where clients ask for it."""

from __future__ import annotations

import pytest
from servers import MODEL, refused

from edgespec import LLM
from edgespec.errors import ContextLengthError
from edgespec.llm.chat import PreparedPrompt
from edgespec.llm.shortening import shortened

TURNS = [
    message
    for number in range(60)
    for message in (
        {"role": "user", "content": f"question {number} of many"},
        {"role": "assistant", "content": f"answer {number}"},
    )
]
SYSTEM = {"role": "system", "content": "be brief"}
LATE = {"role": "system", "content": "still be brief"}
ASKED = {"role": "user", "content": "and now?"}
LONG = [SYSTEM, *TURNS[:20], LATE, *TURNS[20:], ASKED]
GREEDY = {"num_predict": 4, "temperature": 0}


def made(messages, context, sizes=None):
    """What is made of messages that are as long as their texts, and how often it was tried."""
    tried = []
    by_size = {}

    def make(messages):
        tried.append(messages)
        size = sum(len(each["content"]) for each in messages)
        if size >= context:
            raise ContextLengthError(f"{size} are too many")
        by_size[size] = messages
        return PreparedPrompt([0] * size)

    found = shortened(messages, make, context)
    kept = by_size[len(found.tokens)]
    assert found.left_out == len(messages) - len(kept)
    return kept, tried


def conversation(*roles):
    return [{"role": role, "content": f"{n:010}"} for n, role in enumerate(roles)]


def test_what_fits_stays_whole():
    given = conversation("system", *["user", "assistant"] * 4, "user")
    assert made(given, 101) == (given, [given])


def test_as_few_as_possible_are_left_out_and_an_answer_has_room():
    given = conversation("system", *["user", "assistant"] * 4, "user")
    for context in range(41, 101):
        found, tried = made(given, context)
        size = 10 * len(found)
        assert found[0] == given[0]
        assert found[1:] == given[len(given) - len(found) + 1 :]
        assert found[1]["role"] == "user"
        assert size <= context * 3 / 4 + 1 or len(found) == 2
        assert size + 20 > context - context // 4, "two more messages would not have had room"
        assert len(tried) <= 5


def test_the_last_question_stays_with_what_follows_it():
    given = conversation("user", "assistant", "user", "assistant", "tool", "tool")
    assert made(given, 45)[0] == given[2:]
    with pytest.raises(ContextLengthError, match="40 are too many"):
        made(given, 40)
    with pytest.raises(ContextLengthError, match="60 are too many"):
        made(conversation("user", *["assistant"] * 5), 30)


def test_of_ten_thousand_messages_few_beginnings_are_tried():
    given = conversation(*["user", "assistant"] * 5000)
    assert len(made(given, 1000)[1]) < 16


def ollama(running, **fields):
    body = {"model": MODEL, "stream": False, "options": GREEDY, **fields}
    return running.post(body, "/api/chat" if "messages" in fields else "/api/generate")


@pytest.mark.parametrize("truncate", [True, None, False])
def test_ollamas_chat_drops_the_oldest(running, plain, truncate):
    given = ollama(running, messages=LONG, truncate=truncate)
    if truncate is False:
        refused_as_too_long(given)
        return
    left = given.json()["prompt_eval_count"]
    room = plain.context_length * 3 // 4
    sizes = [
        len(plain.chat_tokens([SYSTEM, LATE, *TURNS[start:], ASKED]))
        for start in range(20, len(TURNS), 2)
    ]
    assert left == max(size for size in sizes if size <= room)
    one = [SYSTEM, {"role": "user", "content": "too long " * 2000}]
    refused_as_too_long(ollama(running, messages=one, truncate=truncate))


def refused_as_too_long(given):
    assert given.status_code == 400
    assert "too long" in str(given.json()["error"])


def test_ollamas_context_loses_its_beginning(running, plain):
    known = plain.tokenizer.encode("def f(x):\n" * 400)
    given = ollama(running, prompt="and now?", context=known).json()
    assert given["prompt_eval_count"] == plain.context_length * 3 // 4
    refused_as_too_long(ollama(running, prompt="and now?", context=known, truncate=False))


def test_responses_are_shortened_by_truncation(running, plain):
    body = {"model": MODEL, "input": LONG, "max_output_tokens": 2, "temperature": 0}
    given = running.post({**body, "truncation": "auto"}, "/v1/responses").json()
    assert given["usage"]["input_tokens"] <= plain.context_length * 3 // 4
    assert given["truncation"] == "auto"
    for truncation in ("disabled", None):
        given = running.post({**body, "truncation": truncation}, "/v1/responses")
        refused(given, 400, "too long")


@pytest.mark.parametrize("loaded", [True, False])
def test_a_chat_says_how_many_messages_it_left_out(running, plain, served_bundle, loaded):
    how = {"max_tokens": 4, "temperature": 0}
    with LLM(served_bundle, draft="none", threads=1, context_shift=loaded) as llm:
        asked = {} if loaded else {"context_shift": True}
        expected = llm.chat(LONG, **how, **asked)
        with pytest.raises(ContextLengthError, match="too long"):
            llm.chat(LONG, **how, context_shift=False)
    kept = [SYSTEM, LATE, *LONG[LONG.index(LATE) + 1 :]]
    gone = expected.messages_left_out
    assert 0 < gone < len(LONG)
    assert expected.prompt_tokens == len(plain.chat_tokens([*kept[:2], *LONG[gone + 2 :]]))
    body = {"model": MODEL, "messages": LONG, **how}
    given = running.post({**body, "context_shift": True}, "/v1/chat/completions").json()
    assert given["choices"][0]["message"]["content"] == expected.text
    assert given["edgespec"]["messages_left_out"] == gone
    refused(running.post(body, "/v1/chat/completions"), 400, "too long")
    short = running.post({**body, "messages": LONG[-1:]}, "/v1/chat/completions").json()
    assert "messages_left_out" not in short["edgespec"]
