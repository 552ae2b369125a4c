"""Items of a conversation as the messages of a chat, and requests for responses as chats."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError

from edgespec.serve.protocols.fields import refusal
from edgespec.serve.protocols.responses.request import ResponsesRequest, chat_messages
from edgespec.serve.refusals import RequestError


def asked(given, **fields):
    return ResponsesRequest.model_validate_json(json.dumps({"input": given, **fields}))


def messages(given, instructions=None):
    return chat_messages(instructions, asked(given).input)


def said(role, text):
    return {"role": role, "content": text}


def test_a_text_is_what_a_user_says():
    assert messages("hi") == [said("user", "hi")]
    assert messages("hi", "be brief") == [said("system", "be brief"), said("user", "hi")]


def test_items_without_a_type_are_messages_and_parts_are_one_text():
    parts = [{"type": "input_text", "text": "hel"}, {"type": "input_text", "text": "lo"}]
    answer = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}],
    }
    assert messages([said("user", parts), answer, said("user", "so?")]) == [
        said("user", "hello"),
        said("assistant", "yes"),
        said("user", "so?"),
    ]


def test_what_systems_and_developers_say_first_is_one_message():
    given = [said("developer", "two"), said("system", "three"), said("user", "hi")]
    assert messages(given, "one") == [said("system", "one\n\ntwo\n\nthree"), said("user", "hi")]
    # Later ones stay where they are, as in a chat.
    late = [said("user", "hi"), said("developer", "now"), said("system", "and now")]
    assert messages(late) == late


CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}
OTHER = {**CALL, "id": "fc_2", "call_id": "c2"}
GIVEN = {"type": "function_call_output", "call_id": "c1", "output": "7"}
IN_CHAT = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_thoughts_texts_and_calls_of_one_answer_are_one_message():
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "encrypted_content": None,
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    given = [said("user", "hi"), thought, said("assistant", "wait"), CALL, OTHER, GIVEN]
    assert messages(given)[1:] == [
        {
            **said("assistant", "wait"),
            "reasoning_content": "hm",
            "tool_calls": [IN_CHAT, {**IN_CHAT, "id": "c2"}],
        },
        {**said("tool", "7"), "tool_call_id": "c1"},
    ]


def test_a_call_needs_no_text_and_an_answer_after_it_is_another_one():
    parts = [{"type": "input_text", "text": "7"}]
    given = [CALL, {**GIVEN, "output": parts}, said("assistant", "it is 7"), said("assistant", "!")]
    assert messages(given) == [
        {**said("assistant", None), "tool_calls": [IN_CHAT]},
        {**said("tool", "7"), "tool_call_id": "c1"},
        said("assistant", "it is 7"),
        said("assistant", "!"),
    ]
    assert len(messages([CALL, said("assistant", "called")])) == 2


def test_thoughts_that_are_not_told_leave_nothing():
    hidden = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    assert messages([hidden, said("user", "hi")]) == [said("user", "hi")]


FUNCTION = {"type": "function", "name": "f"}


def why(given):
    with pytest.raises(ValidationError) as caught:
        asked(**given)
    return str(refusal(caught.value))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"given": []}, "List should have at least 1 item"),
        ({"given": [{"type": "item_reference", "id": "x"}]}, "input.0 is {'type': 'item_ref"),
        ({"given": [{"type": [], "role": "user"}]}, "Input should be an item of type message, rea"),
        ({"given": [7]}, "input.0 is 7: Input should be an item of type message"),
        ({"given": [{"role": "user"}]}, "input.0.content is missing"),
        ({"given": [said("robot", "hi")]}, "input.0.role is 'robot'"),
        ({"given": [said("user", [{"type": "input_audio"}])]},
         "Input should be a part of type input_text, output_text, input_image"),
        ({"given": [{**CALL, "arguments": {}}]}, "input.0.arguments is {}"),
        ({"given": "hi", "previous_response_id": "resp_1"},
         "previous_response_id is 'resp_1': Nothing is stored here: send the whole conversation"),
        ({"given": "hi", "conversation": "c"}, "conversation is 'c': Nothing is stored"),
        ({"given": "hi", "prompt": {"id": "p"}}, "prompt is {'id': 'p'}: Nothing is stored"),
        ({"given": "hi", "background": True}, "background is True: Input should be false"),
        ({"given": "hi", "n": 2}, "n is 2, which is not supported"),
        ({"given": "hi", "max_tokens": 2}, "max_tokens is 2, which is not supported"),
        ({"given": "hi", "max_output_tokens": 0}, "max_output_tokens is 0"),
        ({"given": "hi", "tools": [{"name": "f"}]}, "Input should be a tool of type function, na"),
        ({"given": "hi", "tools": [{"type": "namespace", "name": "n"}]}, "tools.0.tools is mis"),
        ({"given": "hi", "tool_choice": {"type": "function"}}, "tool_choice.name is missing"),
        ({"given": "hi", "text": {"format": {"type": "json_schema", "name": "x"}}},
         "Give schema with the type json_schema"),
        ({"given": "hi", "metadata": {"a": math.nan}}, "Its numbers should be finite"),
        ({"given": "hi", "tools": [{**FUNCTION, "parameters": {"a": [math.inf]}}]},
         "tools.0.parameters is {'a': [inf]}: Its numbers should be finite"),
        ({"given": "hi", "text": {"format": {"type": "json_schema", "schema": {"a": math.nan}}}},
         "text.format.schema is {'a': nan}: Its numbers should be finite"),
        ({"given": "hi", "text": {"format": {"type": "text", "schema": {}}}},
         "Give schema with the type json_schema"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(given, reason):
    assert reason in why(given)


def test_every_setting_reaches_the_chat():
    schema = {"type": "object", "properties": {"a": {"default": None}}}
    chat = asked(
        "hi",
        instructions="be brief",
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        seed=-1,
        stop="\n",
        top_logprobs=2,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "x", "schema": schema}, "verbosity": "low"},
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=False,
        speculative={"draft": "none"},
        model="tiny",
    ).chat
    assert [message.plain for message in chat.messages] == messages("hi", "be brief")
    assert (chat.tokens, chat.temperature, chat.top_p, chat.top_k) == (5, 0.5, 0.9, 3)
    assert (chat.seed, chat.stop, chat.likeliest, chat.model) == (None, "\n", 2, "tiny")
    assert chat.response_format.structure == {"json_schema": schema}
    assert (chat.reasoning_effort, chat.verbosity) == ("low", "low")
    assert chat.speculative.draft == "none"
    assert chat.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("fields", "likeliest"),
    [
        ({}, None),
        ({"include": ["reasoning.encrypted_content"]}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, 3),
        ({"top_logprobs": 0}, None),
    ],
    ids=str,
)
def test_who_gets_logprobs(fields, likeliest):
    assert asked("hi", **fields).chat.likeliest == likeliest


def test_functions_are_written_as_in_a_chat():
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    inner = {"name": "f", "parameters": {"type": "object"}, "strict": True}
    named = {"type": "function", "name": "f"}
    chosen = {"type": "function", "function": {"name": "f"}}
    allowed = {"mode": "required", "tools": [chosen]}
    for choice, expected in (
        (named, chosen),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [named]},
            {"type": "allowed_tools", "allowed_tools": allowed},
        ),
        ("auto", "auto"),
    ):
        made = asked("hi", tools=[function], tool_choice=choice).chat.model_dump(exclude_none=True)
        assert made["tools"] == [{"type": "function", "function": inner}]
        assert made["tool_choice"] == expected


def test_what_a_chat_does_not_take_is_refused_by_the_name_of_the_response():
    for given, fields, param in (
        ([{"type": "reasoning", "content": []}], {}, "input"),
        ("hi", {"tools": [{"type": "function", "name": "f g"}]}, "tools"),
    ):
        with pytest.raises(RequestError, match="as a chat: ") as caught:
            _ = asked(given, **fields).chat
        assert (caught.value.status, caught.value.param) == (400, param)
