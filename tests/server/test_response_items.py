"""Items of a conversation as messages, and the options of the text that a request asks for."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from edgespec.llm.images import DataUrl
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
    # Later ones stay where they are.
    late = [said("user", "hi"), said("developer", "now"), said("system", "and now")]
    assert messages(late) == [late[0], said("system", "now"), late[2]]


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
        {**said("assistant", ""), "tool_calls": [IN_CHAT]},
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
        ({"given": [{"type": "item_reference", "id": "x"}]}, 'input.0 is {"type": "item_ref'),
        ({"given": [{"type": [], "role": "user"}]}, "Input should be an item of type message, rea"),
        ({"given": [7]}, "input.0 is 7: Input should be an item of type message"),
        ({"given": [{"role": "user"}]}, "input.0.content is missing"),
        ({"given": [said("robot", "hi")]}, "input.0.role is 'robot'"),
        ({"given": [said("user", [{"type": "input_audio"}])]},
         "Input should be a part of type input_text, output_text, input_image"),
        ({"given": [{**CALL, "arguments": {}}]}, "input.0.arguments is {}"),
        ({"given": "hi", "conversation": "c"}, "conversation is 'c': It is not stored here"),
        ({"given": "hi", "prompt": {"id": "p"}}, 'prompt is {"id": "p"}: It is not'),
        ({"given": "hi", "background": True}, "background is true: Input should be false"),
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
         'tools.0.parameters is {"a": [Infinity]}: Its numbers should be finite'),
        ({"given": "hi", "text": {"format": {"type": "json_schema", "schema": {"a": math.nan}}}},
         'text.format.schema is {"a": NaN}: Its numbers should be finite'),
        ({"given": "hi", "text": {"format": {"type": "text", "schema": {}}}},
         "Give schema with the type json_schema"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(given, reason):
    assert reason in why(given)


def options(given, **fields):
    """The options of the text that a request asks for."""
    return asked(given, **fields).options({})


def test_every_setting_is_an_option_of_the_text():
    schema = {"type": "object", "properties": {"a": {"default": None}}}
    found = options(
        "hi",
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        seed=-1,
        stop="\n",
        top_logprobs=2,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "x", "schema": schema}, "verbosity": "low"},
        tools=[FUNCTION],
        tool_choice="auto",
        parallel_tool_calls=False,
        speculative={"draft": "none"},
        model="tiny",
    )
    assert found == {
        "max_new_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "stop": "\n",
        "stop_loops": False,
        "context_shift": None,
        "logprobs": 2,
        "template_options": {"reasoning_effort": "low"},
        "json_schema": schema,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "draft_source": "none",
        "num_assistant_tokens": None,
    }


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
    assert options("hi", **fields)["logprobs"] == likeliest


@pytest.mark.parametrize(
    ("form", "structure"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_object", "schema": {"a": 1}}, {"a": 1}),
    ],
    ids=str,
)
def test_the_form_of_a_text(form, structure):
    assert options("hi", text={"format": form}).get("json_schema") == structure


def test_functions_are_tools_of_the_model():
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    inner = {"name": "f", "parameters": {"type": "object"}, "strict": True}
    named = {"type": "function", "name": "f"}
    other = {**function, "name": "g"}
    for choice, mode, names in (
        (named, "f", ["f", "g"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [named]}, "required", ["f"]),
        ("auto", "auto", ["f", "g"]),
    ):
        made = options("hi", tools=[function, other], tool_choice=choice)
        assert made["tools"][0] == {"type": "function", "function": inner}
        assert [tool["function"]["name"] for tool in made["tools"]] == names
        assert made["tool_choice"] == mode


def test_functions_of_namespaces_have_both_names():
    server = {"type": "namespace", "name": "box_", "tools": [FUNCTION]}
    chosen = {"type": "function", "name": "f", "namespace": "box_"}
    made = options("hi", tools=[server], tool_choice=chosen)
    assert [tool["function"]["name"] for tool in made["tools"]] == ["box__f"]
    assert made["tool_choice"] == "box__f"
    with pytest.raises(RequestError, match="tool_choice is 'f', but there is no such tool"):
        options("hi", tools=[server], tool_choice=FUNCTION)


@pytest.mark.parametrize(
    ("given", "fields", "param", "reason"),
    [
        ([{"type": "reasoning", "content": []}], {}, "input", "input says nothing"),
        ("hi", {"tools": [{**FUNCTION, "name": "f g"}]}, "tools", "'f g' has a name of other"),
        (
            "hi",
            {"tools": [{"type": "namespace", "name": "n" * 126, "tools": [FUNCTION]}]},
            "tools",
            "of more than 128",
        ),
    ],
    ids=str,
)
def test_what_no_model_could_be_asked_is_refused(given, fields, param, reason):
    with pytest.raises(RequestError, match=reason) as caught:
        asked(given, **fields).request(SimpleNamespace(sampling={}))
    assert (caught.value.status, caught.value.param) == (400, param)


def test_tools_that_take_a_text_are_functions_for_the_model():
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    patch = {"type": "custom", "name": "patch", "description": "Edits.", "format": form}
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "é"}
    image = {"type": "input_image", "image_url": "data:image/png;base64,QUI="}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": [image]}
    body = asked([call, output], tools=[patch], tool_choice={"type": "custom", "name": "patch"})
    options = body.options({})
    [tool] = options["tools"]
    assert tool["function"]["parameters"]["required"] == ["input"]
    assert 'start: "a"' in tool["function"]["description"]
    assert options["tool_choice"] == "patch"
    answer, result = chat_messages(None, body.input)
    assert answer["tool_calls"][0]["function"] == {"name": "patch", "arguments": '{"input": "é"}'}
    assert result == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": [{"type": "image", "image": DataUrl(image["image_url"])}],
    }
