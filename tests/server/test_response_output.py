"""Items and events of a response, read as OpenAI's own client reads them."""

from __future__ import annotations

from itertools import count

import pytest
from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from edgespec.serve.protocols.responses.answer import Output


def call(place, name=None, arguments="", call_id=None):
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    return {
        "tool_calls": [
            {"index": place, "function": function} | ({} if call_id is None else {"id": call_id})
        ]
    }


DELTAS = {
    "text": [{"content": "hel"}, {"content": "lo"}],
    "nothing": [{"role": "assistant", "content": ""}],
    "thought and text": [{"reasoning_content": "h"}, {"reasoning_content": "m"}, {"content": "so"}],
    "thought alone": [{"reasoning_content": "hm"}],
    "text and calls": [
        {"content": "wait"}, call(0, "f", "", "c1"), call(0, None, '{"a":'), call(0, None, "1}"),
        call(1, "g", "{}", "c2"),
    ],
    "a call whose deltas repeat its id": [
        call(0, "f", '{"a":', "c1"), call(0, "f", "1}", "c1"), call(1, "f", "{}", "c2"),
    ],
}  # fmt: skip


def streamed(deltas, whole=True):
    """Returns the events, and the items."""
    output = Output()
    numbers = count()
    events = [event for delta in deltas for event in output.add(delta)] + output.close(whole)
    return [{**event, "sequence_number": next(numbers)} for event in events], output.items


def text_of(item):
    return item.get("arguments") or "".join(part["text"] for part in item.get("content", ()))


EXPECTED = {
    "text": [("message", "hello")],
    "nothing": [("message", "")],
    "thought and text": [("reasoning", "hm"), ("message", "so")],
    "thought alone": [("reasoning", "hm")],
    "text and calls": [("message", "wait"), ("function_call", '{"a":1}'), ("function_call", "{}")],
    "a call whose deltas repeat its id": [("function_call", '{"a":1}'), ("function_call", "{}")],
}


@pytest.mark.parametrize("name", DELTAS)
def test_deltas_become_items(name):
    _, items = streamed(DELTAS[name])
    assert [(item["type"], text_of(item)) for item in items] == EXPECTED[name]
    assert len({item["id"] for item in items}) == len(items)
    assert {item["status"] for item in items} == {"completed"}


@pytest.mark.parametrize("name", [name for name in DELTAS if "repeat" not in name])
def test_the_deltas_as_one_message_become_the_same_items(name):
    def without_ids(items):
        return [{key: value for key, value in item.items() if key != "id"} for item in items]

    message = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in DELTAS[name]:
        for key in ("content", "reasoning_content"):
            message[key] += delta.get(key, "")
        for each in delta.get("tool_calls", ()):
            if each["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({**each, "function": {**each["function"]}})
            else:
                function = message["tool_calls"][-1]["function"]
                function["arguments"] += each["function"]["arguments"]
    _, expected = streamed(DELTAS[name])
    _, found = streamed([message])
    assert without_ids(found) == without_ids(expected)


@pytest.mark.parametrize("name", DELTAS)
def test_events_are_those_that_the_client_knows_and_its_sum_of_them_is_the_response(name):
    events, items = streamed(DELTAS[name])
    response = {"id": "resp_1", "object": "response", "output": [], "status": "in_progress"}
    state = ResponseStreamState(input_tools=omit, text_format=omit)
    ended = {**response, "output": items, "status": "completed"}
    adapter = TypeAdapter(ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event)  # with every field that the type requires
    for event in [
        {"type": "response.created", "response": response, "sequence_number": -1},
        *events,
        {"type": "response.completed", "response": ended, "sequence_number": len(events)},
    ]:
        state.handle_event(construct_type_unchecked(type_=ResponseStreamEvent, value=event))
    found = state._completed_response
    assert [(item.type, text_of(item.to_dict())) for item in found.output] == EXPECTED[name]


def test_text_events_come_in_order_and_belong_to_their_item():
    events, [item] = streamed(DELTAS["text"])
    assert [event["type"].removeprefix("response.") for event in events] == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert {event["item_id"] for event in events[1:-1]} == {item["id"]}
    assert events[0]["item"] == {**item, "status": "in_progress", "content": []}
    assert events[-1]["item"] == item


def test_an_answer_that_was_cut_leaves_its_last_item_incomplete():
    _, items = streamed(DELTAS["thought and text"], whole=False)
    assert [item["status"] for item in items] == ["completed", "incomplete"]


def test_logprobs_are_told_with_their_delta_and_whole_at_the_end():
    output = Output()
    told = [{"token": each, "logprob": -1.0, "bytes": [], "top_logprobs": []} for each in "abc"]
    *_, first = output.add({"content": "a"}, told[:1])
    [rest] = output.add({"content": ""}, told[1:])
    done, part, _ = output.close(True)
    assert (first["logprobs"], rest["logprobs"]) == (told[:1], told[1:])
    assert done["logprobs"] == part["part"]["logprobs"] == told
    assert output.items[0]["content"][0]["logprobs"] == told


def test_logprobs_of_thoughts_and_calls_are_not_told():
    """As in OpenAI's API, where only texts have them."""
    told = [{"token": "a", "logprob": -1.0, "bytes": [], "top_logprobs": []}]
    for delta in ({"reasoning_content": "hm"}, call(0, "f", "{}", "c1")):
        output = Output()
        output.add(delta, told)
        output.add({"content": ""}, told)
        output.close(True)
        [item] = output.items
        assert item["type"] != "message"
