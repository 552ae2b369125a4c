"""Anthropic's API: what its blocks are for a model, and what its answers tell."""

from __future__ import annotations

import json
from http import HTTPStatus

import httpx
import pytest
from chats import template
from fillers import make_filler
from pairs import with_eos
from scripts import write
from servers import MODEL, PLACE, serving

from edgespec import LLM
from edgespec.llm.images import DataUrl
from edgespec.serve.protocols.anthropic.blocks import messages_of_blocks
from edgespec.serve.protocols.anthropic.request import MessagesRequest

ROUTE = "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]
ASKED = {"model": MODEL, "max_tokens": 12, "temperature": 0, "messages": HELLO}
TOOL = {"name": "clock", "description": "Tells the time.", "input_schema": {"type": "object"}}
TEMPLATE = template("hermes") + "{{ '</think>' if 0 }}"
CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    """A server of a model that thinks, calls tools and ends its texts."""
    folder = tmp_path_factory.mktemp("speaking")
    bundle = with_eos(make_filler(folder, TEMPLATE), folder / "ending", 0)
    with LLM(bundle, draft="none", **PLACE) as llm, serving(llm) as running:
        yield running


def read(**body):
    asked = MessagesRequest.model_validate_json(json.dumps({**ASKED, **body}))
    return messages_of_blocks(asked.system, asked.messages)


def test_blocks_are_messages_of_a_chat():
    called = [
        {"type": "thinking", "thinking": "Which?", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "a", "name": "clock", "input": {"zone": "é"}},
        {"type": "tool_use", "id": "b", "name": "clock", "input": {}},
    ]
    told = [
        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "2"}]},
        {"type": "tool_result", "tool_use_id": "a", "content": "1", "is_error": True},
        {"type": "text", "text": "So?", "cache_control": {"type": "ephemeral"}},
        {
            "type": "document",
            "title": "Notes",
            "source": {"type": "text", "media_type": "text/plain", "data": "x"},
        },
    ]
    found = read(
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
            {"type": "text", "text": "Be brief."},
            {"type": "text", "text": "Be kind."},
        ],
        messages=[
            *HELLO,
            {"role": "assistant", "content": called},
            {"role": "user", "content": told},
        ],
    )
    calls = [
        {
            "id": "a",
            "type": "function",
            "function": {"name": "clock", "arguments": '{"zone": "é"}'},
        },
        {"id": "b", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
    ]
    assert found == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Which?",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "user", "content": "So?\n\nNotes\n\nx"},
    ]


def test_images_are_parts():
    source = {"type": "base64", "media_type": "image/png", "data": "QUI="}
    image = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
    [shown, told] = read(
        messages=[{"role": "user", "content": [{"type": "text", "text": "What?"}, image, result]}]
    )
    part = {"type": "image", "image": DataUrl("data:;base64,QUI=")}
    assert shown["content"] == [{"type": "text", "text": "What?"}, part]
    assert told == {"role": "tool", "tool_call_id": "a", "content": [part]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "type text, image"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [TOOL]}, "no such tool"),
        ({"tool_choice": {"type": "any"}}, "no such tool"),
        ({"output_config": {"format": {"type": "json_object"}}}, "json_schema"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}
                        ],
                    }
                ]
            },
            "of text alone",
        ),
        ({"messages": [{"role": "user", "content": "x " * 4000}]}, "too long"),
    ],
)
def test_what_is_wrong_is_told_in_anthropics_format(speaking, body, reason):
    given = speaking.post({**ASKED, **body}, ROUTE)
    assert given.status_code == 400
    told = given.json()
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert reason in told["error"]["message"]


def test_other_statuses_have_kinds_of_their_own(speaking):
    missing = speaking.post({**ASKED, "model": "other"}, ROUTE)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    alien = httpx.get(speaking.url + ROUTE)
    assert alien.status_code == HTTPStatus.METHOD_NOT_ALLOWED
    assert alien.json()["type"] == "error"


def test_the_key_may_come_as_anthropics_clients_send_it(served_bundle):
    with (
        LLM(served_bundle, draft="none", **PLACE) as llm,
        serving(llm, api_key="secret") as running,
    ):

        def status(**headers):
            return httpx.post(running.url + ROUTE, json=ASKED, headers=headers).status_code

        assert status(**{"x-api-key": "secret"}) == 200
        assert status(authorization="Bearer secret") == 200
        assert status(**{"x-api-key": "other"}) == 401
        assert status() == 401


def test_the_stop_string_that_ended_the_text_is_told(speaking):
    whole = speaking.post(ASKED, ROUTE).json()
    text = whole["content"][0]["text"]
    given = speaking.post({**ASKED, "stop_sequences": ["not there", text[3:6]]}, ROUTE).json()
    assert (given["stop_reason"], given["stop_sequence"]) == ("stop_sequence", text[3:6])
    assert given["content"] == [{"type": "text", "text": text[:3]}]
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("max_tokens", None)


def test_usage_counts_cached_tokens_by_themselves(speaking):
    first = speaking.post(ASKED, ROUTE).json()["usage"]
    again = speaking.post(ASKED, ROUTE).json()["usage"]
    assert again["cache_read_input_tokens"] > 0
    total = [each["input_tokens"] + each["cache_read_input_tokens"] for each in (first, again)]
    counted = speaking.post({"model": MODEL, "messages": HELLO}, f"{ROUTE}/count_tokens").json()
    assert total == [counted["input_tokens"]] * 2


def test_tokens_are_counted_with_tools_and_beyond_the_context(speaking):
    def count(**body):
        given = speaking.post({"model": MODEL, "messages": HELLO, **body}, f"{ROUTE}/count_tokens")
        assert given.status_code == 200, given.text
        return given.json()["input_tokens"]

    plain = count()
    assert count(tools=[TOOL]) > plain
    assert count(system="Be brief.") > plain
    long = count(messages=[{"role": "user", "content": "x " * 1000}])
    assert long > speaking.queue.models.served[0].plan.context


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_ends_the_turn(speaking, monkeypatch, stream):
    write(monkeypatch, f"Well.{CALL}")
    asked = {**ASKED, "max_tokens": 80, "tools": [TOOL, {"type": "bash_20250124", "name": "bash"}]}
    given = speaking.post({**asked, "stream": stream}, ROUTE)
    if stream:
        events = [json.loads(line[6:]) for line in given.text.splitlines() if line[:5] == "data:"]
        kinds = [each["type"] for each in events if each["type"] != "content_block_delta"]
        block = ["content_block_start", "content_block_stop"]
        assert kinds == ["message_start", *block, *block, "message_delta", "message_stop"]
        ended = events[-2]["delta"]
        names = [line[7:] for line in given.text.splitlines() if line.startswith("event: ")]
        assert names == [each["type"] for each in events]
    else:
        ended = given.json()
        assert [each["type"] for each in ended["content"]] == ["text", "tool_use"]
        assert ended["content"][1]["input"] == {}
    assert ended["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("choice", "most"), [({"type": "tool", "name": "clock"}, 1), ({"type": "none"}, 0)]
)
def test_a_choice_is_followed(speaking, monkeypatch, choice, most):
    write(monkeypatch, f"{CALL}{CALL}")
    asked = {**ASKED, "max_tokens": 80, "tools": [TOOL], "tool_choice": choice}
    given = speaking.post(asked, ROUTE).json()["content"]
    assert sum(each["type"] == "tool_use" for each in given) == most


def test_thinking_is_told_and_bounded(speaking, monkeypatch):
    write(monkeypatch, "<think>\nRome, say. And so on.\n</think>\n\n12")
    form = {"format": {"type": "json_schema", "schema": {"type": "integer"}}}
    asked = {**ASKED, "max_tokens": 80, "output_config": form}
    given = speaking.post(asked, ROUTE).json()["content"]
    assert [each["type"] for each in given] == ["thinking", "text"]
    assert given[0] == {"type": "thinking", "thinking": "Rome, say. And so on.", "signature": ""}
    bounded = {**asked, "thinking": {"type": "enabled", "budget_tokens": 3}}
    short = speaking.post(bounded, ROUTE).json()["content"][0]
    assert given[0]["thinking"].startswith(short["thinking"].rstrip())
    assert len(short["thinking"]) < len(given[0]["thinking"])
