"""The Responses API, as OpenAI's client speaks it."""

from __future__ import annotations

import json

import httpx
import openai
import pydantic
import pytest
from servers import MODEL, fail_later, refused

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
ASKED = {"model": MODEL, "instructions": "be brief", "input": "hello", "temperature": 0}
GREEDY = {**ASKED, "max_output_tokens": 24}
PATH = "/v1/responses"


@pytest.fixture(scope="module")
def expected(plain):
    return plain.chat(MESSAGES, max_new_tokens=24)


def test_a_response_is_the_answer_of_a_chat(client, expected):
    given = client.responses.create(**GREEDY, metadata={"of": "me"}, store=True, user="me")
    assert given.output_text == expected.text
    [message] = given.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "incomplete")
    assert (given.object, given.model, given.store) == ("response", MODEL, True)
    assert (given.instructions, given.metadata, given.temperature) == ("be brief", {"of": "me"}, 0)
    # Texts of this model end by length only.
    assert given.status == "incomplete"
    assert given.incomplete_details.reason == "max_output_tokens"
    assert given.usage.input_tokens == expected.prompt_tokens
    assert given.usage.output_tokens == 24
    assert given.usage.total_tokens == expected.prompt_tokens + 24
    assert given.edgespec["draft"] == "lookup"


def test_a_response_has_all_that_its_type_requires(client):
    given = client.responses.create(**GREEDY)
    openai.types.responses.Response.model_validate(given.to_dict())
    assert given.id.startswith("resp_")
    assert given.output[0].id.startswith("msg_")


def test_a_stream_says_the_same_in_events(client, expected):
    events = list(client.responses.create(**GREEDY, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert len(kinds) > 12
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4:-4]) == expected.text
    assert events[-4].text == events[-3].part.text == events[-1].response.output_text
    assert events[-1].response.output_text == expected.text
    assert {events[0].response.id, events[1].response.id} == {events[-1].response.id}
    assert (events[0].response.status, events[0].response.output) == ("in_progress", [])
    assert events[-1].response.usage.output_tokens == 24


def test_a_stream_and_a_whole_response_are_alike(client):
    def plain(response):
        told = response.to_dict()
        for name in ("id", "created_at", "edgespec", "usage"):
            del told[name]
        del told["output"][0]["id"]
        return told

    *_, last = client.responses.create(**GREEDY, stream=True, top_logprobs=2)
    assert plain(last.response) == plain(client.responses.create(**GREEDY, top_logprobs=2))


def test_events_are_sent_under_their_names_and_nothing_follows_the_last(running):
    lines = running.post({**GREEDY, "stream": True}, PATH).text.split("\n\n")
    assert lines.pop() == ""
    for line in lines:
        name, data = line.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    assert lines[-1].startswith("event: response.incomplete\n")


def test_statistics_come_with_the_events(client):
    events = list(client.responses.create(**GREEDY, stream=True))
    told = [event.edgespec for event in events[:-1] if hasattr(event, "edgespec")]
    assert sum(each["rounds"] for each in told) == events[-1].response.edgespec["rounds"] > 0


def test_logprobs_for_who_asks(client, plain):
    asked = {**GREEDY, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    told = client.responses.create(**asked).output[0].content[0].logprobs
    made = plain.chat(MESSAGES, max_new_tokens=24, logprobs=2).logprobs
    assert [each.logprob for each in told] == pytest.approx([each.logprob for each in made])
    assert {len(each.top_logprobs) for each in told} == {2}
    events = list(client.responses.create(**asked, stream=True))
    streamed = [
        each.token
        for event in events
        if event.type == "response.output_text.delta"
        for each in event.logprobs
    ]
    assert streamed == [each.token for each in told]
    assert client.responses.create(**GREEDY).output[0].content[0].logprobs == []


def test_a_conversation_goes_on_with_the_items_that_came(client, plain, expected):
    answer = client.responses.create(**GREEDY)
    more = {"role": "user", "content": [{"type": "input_text", "text": "more"}]}
    said = [{"role": "user", "content": "hello"}, *answer.output, more]
    given = client.responses.create(**{**GREEDY, "input": said})
    told = {"role": "assistant", "content": expected.text}
    whole = [*MESSAGES, told, {"role": "user", "content": "more"}]
    assert given.output_text == plain.chat(whole, max_new_tokens=24).text


def test_without_a_limit_an_answer_has_what_the_context_holds(running, plain):
    given = running.post(ASKED, PATH).json()
    assert given["usage"]["total_tokens"] == plain.context_length
    assert given["max_output_tokens"] is None


def test_what_is_wrong_is_told_as_everywhere(client, running):
    with pytest.raises(openai.BadRequestError, match="send the whole conversation") as caught:
        client.responses.create(**GREEDY, previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError, match="not found: use"):
        client.responses.create(**{**GREEDY, "model": "gpt-5"})
    for stream in (False, True):
        long = {**GREEDY, "input": "a b" * 1000, "stream": stream}
        with pytest.raises(openai.BadRequestError, match="longer than the model's") as caught:
            client.responses.create(**long)
        assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):  # those that are kept are no files to fetch
        client.responses.retrieve("resp_1")
    refused(running.post({"input": []}, PATH), 400, "at least 1 item")


def test_a_request_goes_on_from_an_earlier_response(client, llm):
    first = client.responses.create(**GREEDY)
    more = {**GREEDY, "input": "and?", "instructions": None}
    second = client.responses.create(**more, previous_response_id=first.id)
    third = client.responses.create(**more, previous_response_id=second.id, store=False)
    said = [{"role": "user", "content": GREEDY["input"]}, *answered(first)]
    assert second.output_text == llm.chat(said, max_new_tokens=24, temperature=0).text
    said += [*answered(second)]
    assert third.output_text == llm.chat(said, max_new_tokens=24, temperature=0).text
    assert (third.previous_response_id, third.store) == (second.id, False)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**more, previous_response_id=third.id)
    assert caught.value.code == "previous_response_not_found"


def answered(response):
    """What a conversation has behind a response that asks further."""
    return [
        {"role": "assistant", "content": response.output_text},
        {"role": "user", "content": "and?"},
    ]


def test_a_device_that_fails_in_the_midst_ends_the_stream_with_a_failed_response(
    client, llm, monkeypatch
):
    fail_later(monkeypatch, llm)
    asked = {**GREEDY, "input": "class Stack:\n"}
    events = list(client.responses.create(**asked, stream=True))
    assert events[-2].type == "response.output_text.delta"
    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed"
    assert events[-1].response.error.message.startswith("the server has failed")
    assert events[-1].response.id == events[0].response.id


# Structured answers, by the client's own helpers; a model whose texts can end.


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=5)
    old: bool


SEEDED = {"model": MODEL, "input": "who?", "extra_body": {"seed": 1}}


@pytest.fixture(scope="module")
def whole(ending):
    return ending.client()


def test_the_helper_that_parses_gets_an_object(whole):
    given = whole.responses.parse(**SEEDED, text_format=Person)
    assert isinstance(given.output_parsed, Person)
    assert given.status == "completed"
    assert given.output[0].status == "completed"
    assert given.text.format.name == "Person"


def test_the_helper_that_streams_gets_the_same_object(whole):
    with whole.responses.stream(**SEEDED, text_format=Person) as stream:
        kinds = [event.type for event in stream]
        given = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert given.output_parsed == whole.responses.parse(**SEEDED, text_format=Person).output_parsed


def test_a_json_object_begins_like_one(whole):
    given = whole.responses.create(**SEEDED, text={"format": {"type": "json_object"}})
    assert given.output_text.startswith("{")


async def _first_deltas(url):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        stream = await client.responses.create(**GREEDY, stream=True)
        return [event.type async for event in stream]


def test_the_asynchronous_client_reads_the_same(running):
    import asyncio

    kinds = asyncio.run(_first_deltas(running.url))
    assert (kinds[0], kinds[-1]) == ("response.created", "response.incomplete")


def test_the_routes_for_stored_responses_do_not_exist(running):
    for method, path in (("GET", "/x"), ("DELETE", "/x"), ("POST", "/x/cancel")):
        assert httpx.request(method, f"{running.url}{PATH}{path}").status_code == 404
