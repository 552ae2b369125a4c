"""Items and events of a response, read as OpenAI's own client reads them."""

from __future__ import annotations

from itertools import count

import pytest
from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from edgespec.runtime.text.decoder import CallEvent
from edgespec.serve.parts import Part
from edgespec.serve.protocols.protocol import Origin
from edgespec.serve.protocols.responses.answer import Output

ORIGIN = Origin("tiny", "fp_1", None)


def part(text="", reasoning="", calls=()):
    return Part(text, (), (), reasoning=reasoning, calls=tuple(CallEvent(*call) for call in calls))


PARTS = {
    "text": [part("hel"), part("lo")],
    "nothing": [part()],
    "thought and text": [part(reasoning="h"), part(reasoning="m"), part("so")],
    "thought alone": [part(reasoning="hm")],
    "text and calls": [
        part("wait"),
        part(calls=[(0, "", "c1", "f")]),
        part(calls=[(0, '{"a":')]),
        part(calls=[(0, "1}"), (1, "{}", "c2", "g")]),
    ],
}
WHOLE = {
    "text": part("hello"),
    "nothing": part(),
    "thought and text": part("so", "hm"),
    "thought alone": part(reasoning="hm"),
    "text and calls": part("wait", calls=[(0, '{"a":1}', "c1", "f"), (1, "{}", "c2", "g")]),
}


def test_the_text_for_a_tool_comes_whole():
    output = Output(ORIGIN.id_of, custom={"f"})
    pieces = [(0, "", "c1", "f"), (0, '{"input": "a'), (0, '\\n\\u00e9"}'), (1, "{}", "c2", "g")]
    events = [event for each in pieces for event in output.add(part(calls=[each]))]
    events += output.close(True)
    custom, function = output.items
    assert custom["type"] == "custom_tool_call"
    assert (custom["call_id"], custom["name"], custom["input"]) == ("c1", "f", "a\né")
    assert (function["type"], function["arguments"]) == ("function_call", "{}")
    kinds = [event["type"] for event in events if event["output_index"] == 0]
    own = "response.custom_tool_call_input"
    assert kinds == [
        "response.output_item.added",
        f"{own}.delta",
        f"{own}.done",
        "response.output_item.done",
    ]


def test_a_text_for_a_tool_that_was_cut_is_empty():
    output = Output(ORIGIN.id_of, custom={"f"})
    output.add(part(calls=[(0, '{"input": "a', "c1", "f")]))
    output.close(False)
    assert output.items[0]["input"] == ""


def streamed(parts, whole=True):
    """Returns the events, and the items."""
    output = Output(ORIGIN.id_of)
    numbers = count()
    events = [event for each in parts for event in output.add(each)] + output.close(whole)
    return [{**event, "sequence_number": next(numbers)} for event in events], output.items


def text_of(item):
    return item.get("arguments") or "".join(part["text"] for part in item.get("content", ()))


EXPECTED = {
    "text": [("message", "hello")],
    "nothing": [("message", "")],
    "thought and text": [("reasoning", "hm"), ("message", "so")],
    "thought alone": [("reasoning", "hm")],
    "text and calls": [("message", "wait"), ("function_call", '{"a":1}'), ("function_call", "{}")],
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_become_items(name):
    _, items = streamed(PARTS[name])
    assert [(item["type"], text_of(item)) for item in items] == EXPECTED[name]
    assert len({item["id"] for item in items}) == len(items)
    assert {item["status"] for item in items} == {"completed"}


@pytest.mark.parametrize("name", PARTS)
def test_an_answer_in_one_part_becomes_the_same_items(name):
    def without_ids(items):
        return [{key: value for key, value in item.items() if key != "id"} for item in items]

    _, expected = streamed(PARTS[name])
    _, found = streamed([WHOLE[name]])
    assert without_ids(found) == without_ids(expected)


@pytest.mark.parametrize("name", PARTS)
def test_events_are_those_that_the_client_knows_and_its_sum_of_them_is_the_response(name):
    events, items = streamed(PARTS[name])
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
    events, [item] = streamed(PARTS["text"])
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
    _, items = streamed(PARTS["thought and text"], whole=False)
    assert [item["status"] for item in items] == ["completed", "incomplete"]


def test_logprobs_are_told_with_their_part_and_whole_at_the_end():
    output = Output(ORIGIN.id_of)
    told = [{"token": each, "logprob": -1.0, "bytes": [], "top_logprobs": []} for each in "abc"]
    *_, first = output.add(part("a"), told[:1])
    [rest] = output.add(part(), told[1:])
    done, whole, _ = output.close(True)
    assert (first["logprobs"], rest["logprobs"]) == (told[:1], told[1:])
    assert done["logprobs"] == whole["part"]["logprobs"] == told
    assert output.items[0]["content"][0]["logprobs"] == told


def test_logprobs_of_thoughts_and_calls_are_not_told():
    """As in OpenAI's API, where only texts have them."""
    told = [{"token": "a", "logprob": -1.0, "bytes": [], "top_logprobs": []}]
    for other in (part(reasoning="hm"), part(calls=[(0, "{}", "c1", "f")])):
        output = Output(ORIGIN.id_of)
        output.add(other, told)
        output.add(part(), told)
        output.close(True)
        [item] = output.items
        assert item["type"] != "message"
