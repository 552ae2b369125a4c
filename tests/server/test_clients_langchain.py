"""LangChain's client of OpenAI's API, which the extra `clients` installs."""

from __future__ import annotations

import asyncio

import openai
import pydantic
import pytest
from installed import installed
from servers import MODEL, PROMPT

messages = installed("langchain_core.messages")
langchain = installed("langchain_openai")

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
SAID = [("system", "be brief"), ("human", "hello")]
BOTH = pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])


def model(running, responses=False, **options):
    usual = {"model": MODEL, "temperature": 0, "max_tokens": 24, "max_retries": 0}
    return langchain.ChatOpenAI(
        base_url=f"{running.url}/v1",
        api_key="none",
        use_responses_api=responses,
        **{**usual, **options},
    )


@BOTH
def test_a_message_is_answered_with_the_models_text(running, plain, responses):
    expected = plain.chat(MESSAGES, max_new_tokens=24)
    given = model(running, responses).invoke(SAID)
    assert given.text == expected.text
    assert given.usage_metadata["input_tokens"] == expected.prompt_tokens
    assert given.usage_metadata["output_tokens"] == 24


@BOTH
def test_a_stream_is_the_same_text_in_pieces(running, plain, responses):
    chunks = list(model(running, responses, stream_usage=True).stream(SAID))
    texts = [chunk.text for chunk in chunks if chunk.text]
    assert "".join(texts) == plain.chat(MESSAGES, max_new_tokens=24).text
    assert len(texts) > 5
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.usage_metadata["output_tokens"] == 24


@BOTH
def test_an_answer_goes_into_the_next_request(running, plain, responses):
    chat = model(running, responses)
    answer = chat.invoke(SAID)
    given = chat.invoke([*SAID, answer, ("human", "more")])
    told = {"role": "assistant", "content": answer.text}
    whole = [*MESSAGES, told, {"role": "user", "content": "more"}]
    assert given.text == plain.chat(whole, max_new_tokens=24).text


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=5)
    old: bool


@BOTH
def test_a_structured_answer_is_an_object(ending, responses):
    chat = model(ending, responses, temperature=1, max_tokens=None, extra_body={"seed": 1})
    assert isinstance(chat.with_structured_output(Person).invoke("who?"), Person)


def test_the_asynchronous_calls_do_the_same(running, plain):
    async def ask():
        # In one event loop, since the instances share their connections.
        for responses in (False, True):
            chat = model(running, responses)
            yield (await chat.ainvoke(SAID)).text
            yield "".join([chunk.text async for chunk in chat.astream(SAID)])

    async def collected():
        return [text async for text in ask()]

    expected = plain.chat(MESSAGES, max_new_tokens=24).text
    assert asyncio.run(collected()) == [expected] * 4


@BOTH
def test_too_long_a_conversation_is_known_as_such(running, responses):
    with pytest.raises(langchain.chat_models.base.OpenAIContextOverflowError):
        model(running, responses).invoke("a b" * 1000)


def test_a_wrong_name_is_known_as_such(running):
    with pytest.raises(openai.NotFoundError, match="not found: use"):
        model(running, model="gpt-x").invoke("hello")


# Completions


def completions(running, **options):
    return langchain.OpenAI(
        model=MODEL,
        base_url=f"{running.url}/v1",
        api_key="none",
        temperature=0,
        max_tokens=24,
        max_retries=0,
        **options,
    )


def test_a_prompt_is_completed(running, plain):
    expected = plain.generate(PROMPT, max_new_tokens=24).text
    assert completions(running).invoke(PROMPT) == expected
    assert "".join(completions(running).stream(PROMPT)) == expected
