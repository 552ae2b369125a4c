"""The helpers of OpenAI's own client for chats; `test_server_responses` has those for responses."""

from __future__ import annotations

import asyncio
from typing import Literal

import openai
import pydantic
import pytest
from servers import MODEL

MESSAGES = [{"role": "user", "content": "who?"}]
ASKED = {"model": MODEL, "messages": MESSAGES, "seed": 1}


class Pet(pydantic.BaseModel):
    kind: Literal["cat", "dog"]
    name: str = pydantic.Field(max_length=4)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=5)
    old: bool
    pet: Pet | None


@pytest.fixture(scope="module")
def speaking(ending):
    return ending.client()


def test_the_helper_that_parses_gets_objects_of_all_choices(speaking):
    given = speaking.chat.completions.parse(**ASKED, response_format=Person, n=3)
    found = [choice.message.parsed for choice in given.choices]
    assert all(isinstance(each, Person) for each in found)
    assert len(set(map(str, found))) > 1


def test_the_helper_that_streams_gets_the_same_object(speaking):
    with speaking.chat.completions.stream(**ASKED, response_format=Person) as stream:
        kinds = {event.type for event in stream}
        given = stream.get_final_completion().choices[0].message
    expected = speaking.chat.completions.parse(**ASKED, response_format=Person).choices[0].message
    assert {"content.delta", "content.done", "chunk"} <= kinds
    assert given.parsed == expected.parsed
    assert given.content == expected.content


def test_the_helper_that_streams_keeps_choices_apart(speaking):
    with speaking.chat.completions.stream(**ASKED, response_format=Person, n=2) as stream:
        given = stream.get_final_completion()
    expected = speaking.chat.completions.parse(**ASKED, response_format=Person, n=2)
    assert [choice.message.parsed for choice in given.choices] == [
        choice.message.parsed for choice in expected.choices
    ]


def test_a_structured_answer_that_was_cut_is_known_as_such(speaking):
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        speaking.chat.completions.parse(**ASKED, response_format=Person, max_tokens=3)
    assert caught.value.completion.usage.completion_tokens == 3


def test_raw_answers_and_raw_streams(speaking):
    raw = speaking.chat.completions.with_raw_response.create(**ASKED, max_tokens=4)
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].message.content is not None
    streamed = speaking.chat.completions.with_streaming_response.create(
        **ASKED, max_tokens=4, stream=True
    )
    with streamed as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_the_asynchronous_client_asks_several_at_once(ending, speaking):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{ending.url}/v1", api_key="none") as asking:
            return await asyncio.gather(
                *(asking.chat.completions.create(**{**ASKED, "seed": seed}) for seed in range(4))
            )

    expected = [speaking.chat.completions.create(**{**ASKED, "seed": seed}) for seed in range(4)]
    assert [each.choices[0].message.content for each in asyncio.run(ask())] == [
        each.choices[0].message.content for each in expected
    ]
