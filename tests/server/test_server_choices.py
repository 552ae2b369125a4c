"""Several choices for one request (`n`), made one after the other."""

from __future__ import annotations

import openai
import pytest
from servers import MODEL, PLACE, PROMPT, refused, serving, until

from edgespec import LLM

MESSAGES = [{"role": "user", "content": "hello"}]
SEEDED = {"model": MODEL, "temperature": 1.0, "seed": 5, "max_tokens": 24}


@pytest.fixture(scope="module")
def running(plain):
    # With no place to wait: the choices of a request have one together.
    with serving(plain, limit=0) as running:
        yield running


@pytest.fixture(scope="module")
def client(running):
    return running.client()


def texts(plain, count, **options):
    return [
        plain.generate(PROMPT, max_new_tokens=24, temperature=1.0, seed=5 + each, **options).text
        for each in range(count)
    ]


def test_choices_have_seeds_that_follow_each_other(client, plain):
    given = client.completions.create(prompt=PROMPT, n=3, **SEEDED)
    assert [choice.text for choice in given.choices] == texts(plain, 3)
    assert [choice.index for choice in given.choices] == [0, 1, 2]
    assert len({choice.text for choice in given.choices}) == 3
    assert [choice.edgespec["seed"] for choice in given.choices] == [5, 6, 7]
    assert not hasattr(given, "edgespec")
    asked = {"messages": MESSAGES, **SEEDED, "n": 2}
    chat = client.chat.completions.create(**asked)
    assert [choice.message.content for choice in chat.choices] == [
        plain.chat(MESSAGES, max_new_tokens=24, temperature=1.0, seed=seed).text for seed in (5, 6)
    ]


def test_the_prompt_is_counted_once_and_the_tokens_of_all_choices(client):
    one, three = (client.completions.create(prompt=PROMPT, n=n, **SEEDED).usage for n in (1, 3))
    assert three.prompt_tokens == one.prompt_tokens
    assert (one.completion_tokens, three.completion_tokens) == (24, 72)
    assert three.total_tokens == three.prompt_tokens + 72


def test_greedy_choices_are_the_same_and_without_a_seed_they_differ(client, plain):
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "n": 3}
    greedy = client.completions.create(**asked, temperature=0)
    expected = plain.generate(PROMPT, max_new_tokens=24).text
    assert [choice.text for choice in greedy.choices] == [expected] * 3
    free = client.completions.create(**asked)
    assert len({choice.edgespec["seed"] for choice in free.choices}) == 3


def test_the_seed_after_the_last_is_the_first(client):
    asked = {**SEEDED, "seed": (1 << 64) - 1, "max_tokens": 1}
    given = client.completions.create(prompt=PROMPT, n=2, **asked)
    assert [choice.edgespec["seed"] for choice in given.choices] == [(1 << 64) - 1, 0]


def test_a_stream_says_which_choice_a_chunk_belongs_to(client, plain):
    asked = {**SEEDED, "n": 3, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage = client.completions.create(prompt=PROMPT, logprobs=1, **asked)
    found = ["", "", ""]
    ends = [None] * 3
    offsets = [[], [], []]
    for chunk in chunks:
        [choice] = chunk.choices
        found[choice.index] += choice.text
        ends[choice.index] = choice.finish_reason
        if choice.logprobs:
            offsets[choice.index] += choice.logprobs.text_offset
    assert found == texts(plain, 3)
    assert ends == ["length"] * 3
    assert [each[0] for each in offsets] == [0, 0, 0]
    assert [len(each) for each in offsets] == [24, 24, 24]
    assert len({chunk.id for chunk in [*chunks, usage]}) == 1
    assert usage.choices == []
    assert usage.usage.completion_tokens == 72


def test_a_streamed_chat_opens_every_choice(client):
    asked = {"messages": MESSAGES, **SEEDED, "n": 2, "stream": True}
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked)]
    opened = [choice.index for choice in chunks if choice.delta.role == "assistant"]
    assert opened == [0, 1]
    assert [choice.index for choice in chunks if choice.finish_reason] == [0, 1]


PROMPTS = [PROMPT, "class Stack:\n"]


@pytest.mark.parametrize("told", [str, list], ids=["texts", "tokens"])
def test_prompts_in_a_list_have_their_choices_one_after_the_other(client, plain, told):
    prompts = [each if told is str else plain.tokenizer.encode(each) for each in PROMPTS]
    alone = [client.completions.create(prompt=each, n=2, **SEEDED) for each in prompts]
    given = client.completions.create(prompt=prompts, n=2, **SEEDED)
    assert [choice.text for choice in given.choices] == [
        choice.text for one in alone for choice in one.choices
    ]
    assert [choice.index for choice in given.choices] == [0, 1, 2, 3]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(given.usage, name) == sum(getattr(one.usage, name) for one in alone)


def test_the_prompt_is_read_once(served_bundle):
    llm = LLM(served_bundle, draft="none", **PLACE)
    with serving(llm) as running:
        asked = {**SEEDED, "max_tokens": 2}
        given = running.client().completions.create(prompt=PROMPT, n=3, **asked)
        length = given.usage.prompt_tokens
        assert given.usage.prompt_tokens_details.cached_tokens == 0
        numbers = running.metrics()
    assert numbers["edgespec_prompt_tokens_total"] == 3 * length
    assert numbers["edgespec_reused_total"] == 2 * (length - 1)  # the last one gives the logits


def test_a_client_that_goes_ends_all_its_choices(plain):
    with serving(plain) as running:
        asked = {**SEEDED, "max_tokens": 400, "n": 3, "stream": True}
        with running.client().completions.create(prompt=PROMPT, **asked) as chunks:
            next(iter(chunks))
        until(lambda: running.queue.running == 0)
        numbers = running.metrics()
        assert numbers['edgespec_texts_total{finish_reason="cancelled"}'] == 3
        assert numbers["edgespec_new_tokens_total"] < 400


def test_a_shutdown_refuses_the_choices_that_are_left(plain):
    with serving(plain) as running:
        asked = {**SEEDED, "max_tokens": 400, "n": 3, "stream": True}
        chunks = iter(running.client().completions.create(prompt=PROMPT, **asked))
        next(chunks)
        running.server.should_exit = True
        with pytest.raises(openai.APIError, match="shutting down"):
            list(chunks)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n": 0}, "n is 0: Input should be greater"),
        ({"n": 129}, "n is 129: Input should be less than or equal to 128"),
        ({"n": 2, "best_of": 2}, "best_of is 2: Input should be less than or equal to 1"),
        ({"n": 65, "prompt": ["a", "b"]}, "n is 65 for 2 prompts: ask for 128 choices in all"),
        ({"prompt": ["a", [331]]}, "token id 331 is not in the vocabulary"),
        ({"n": 2, "seed": 1, "prompt": "a b" * 1000}, "the model's context length of"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_name(running, fields, reason):
    refused(running.post({"prompt": "a", **fields}), 400, reason)
