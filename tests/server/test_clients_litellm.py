"""LiteLLM, through which many assistants speak OpenAI's API; the extra `clients` installs it."""

from __future__ import annotations

import json
import os

import pydantic
import pytest
from installed import installed
from servers import MODEL, PROMPT

from edgespec.serve import endpoint

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network
litellm = installed("litellm")

# The warnings are about its own code.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]


def asked(running, provider="openai", **options):
    return {
        "model": f"{provider}/{MODEL}",
        "api_base": f"{running.url}/v1",
        "api_key": "none",
        "num_retries": 0,
        "temperature": 0,
        "max_tokens": 24,
        **options,
    }


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "litellm_proxy"])
def test_a_chat_by_any_of_its_names_for_servers_like_this(running, plain, provider):
    given = litellm.completion(messages=MESSAGES, **asked(running, provider))
    expected = plain.chat(MESSAGES, max_new_tokens=24)
    assert given.choices[0].message.content == expected.text
    assert given.choices[0].finish_reason == "length"
    assert given.usage.prompt_tokens == expected.prompt_tokens


@pytest.mark.parametrize("provider", ["ollama_chat", "ollama"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_in_ollamas_words(running, plain, provider, stream, monkeypatch):
    """Which names no content type, and passes over lines that say how much was read."""
    monkeypatch.setattr(endpoint, "_READING", 0.0)
    options = {"api_base": running.url, "stream": stream}
    given = litellm.completion(messages=MESSAGES, **asked(running, provider, **options))
    chunks = list(given) if stream else []
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    text = text if stream else given.choices[0].message.content
    if provider == "ollama_chat":
        assert text == plain.chat(MESSAGES, max_new_tokens=24).text
    else:  # which writes the conversation as one prompt
        assert text


def test_a_streamed_chat(running, plain):
    told = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(litellm.completion(messages=MESSAGES, **asked(running, **told)))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == plain.chat(MESSAGES, max_new_tokens=24).text
    assert litellm.stream_chunk_builder(chunks).usage.completion_tokens == 24


def test_an_answer_goes_into_the_next_request(running, plain):
    answer = litellm.completion(messages=MESSAGES, **asked(running)).choices[0].message
    more = {"role": "user", "content": "more"}
    given = litellm.completion(messages=[*MESSAGES, answer, more], **asked(running))
    whole = [*MESSAGES, {"role": "assistant", "content": answer.content}, more]
    assert given.choices[0].message.content == plain.chat(whole, max_new_tokens=24).text


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=5)
    old: bool


def test_a_structured_answer(ending):
    options = {"response_format": Person, "temperature": 1, "seed": 1, "max_tokens": None}
    given = litellm.completion(messages=MESSAGES, **asked(ending, **options))
    Person.model_validate_json(given.choices[0].message.content)


def test_a_completion(running, plain):
    options = asked(running, "text-completion-openai")
    given = litellm.text_completion(prompt=PROMPT, **options)
    assert given.choices[0].text == plain.generate(PROMPT, max_new_tokens=24).text


def test_a_response_whole_and_streamed(running, plain):
    expected = plain.chat(MESSAGES, max_new_tokens=24).text
    options = asked(running)
    options["max_output_tokens"] = options.pop("max_tokens")
    said = {"instructions": "be brief", "input": "hello"}
    given = litellm.responses(**said, **options)
    assert given.output_text == expected
    assert given.status == "incomplete"
    events = list(litellm.responses(**said, **options, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == expected
    assert json.loads(events[-1].model_dump_json())["response"]["usage"]["output_tokens"] == 24


def test_its_kinds_of_errors(running):
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "a b" * 1000}], **asked(running))
    with pytest.raises(litellm.NotFoundError, match="not found: use"):
        litellm.completion(messages=MESSAGES, **{**asked(running), "model": "openai/gpt-x"})
    with pytest.raises(litellm.BadRequestError, match="top_p is 3"):
        litellm.completion(messages=MESSAGES, **asked(running, top_p=3))
    with pytest.raises(litellm.BadRequestError, match="no embeddings"):
        litellm.embedding(
            model=f"openai/{MODEL}", input=["a"], api_base=f"{running.url}/v1", api_key="none"
        )
