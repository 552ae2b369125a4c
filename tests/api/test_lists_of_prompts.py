"""`LLM.generate` of a list of prompts: the texts of each, in order, some at once."""

from __future__ import annotations

import threading
from typing import get_overloads

import pytest
from pairs import LONG_PROMPT, SHORT_PROMPT
from sessions import OPTIONS, fresh, load
from watching import on_every_call

from edgespec import LLM
from edgespec.api.generation import GenerationStream
from edgespec.errors import ContextLengthError, DeviceError, InputError

PROMPTS = [SHORT_PROMPT, LONG_PROMPT, *(f"def f{number}(x):\n" for number in range(9))]


@pytest.mark.parametrize("draft", ["none", "auto"])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}])
def test_each_text_is_what_its_prompt_alone_gives(pairs, draft, options):
    llm = load(pairs, draft)
    found = llm.generate(PROMPTS, **OPTIONS, **options)
    assert [result.tokens for result in found] == [
        fresh(pairs, prompt, **options).tokens for prompt in PROMPTS
    ]


def test_lists_of_token_ids_are_several_prompts_and_a_list_of_ids_is_one(pairs):
    llm = load(pairs)
    tokens = [llm.tokenizer.encode(prompt) for prompt in PROMPTS[:3]]
    several, mixed = llm.generate(tokens, **OPTIONS), [PROMPTS[0], tokens[1]]
    assert [result.tokens for result in several] == [
        llm.generate(each, **OPTIONS).tokens for each in tokens
    ]
    assert [result.tokens for result in llm.generate(mixed, **OPTIONS)] == [
        result.tokens for result in several[:2]
    ]
    assert llm.generate([PROMPTS[0]], **OPTIONS)[0].tokens == several[0].tokens


@pytest.mark.parametrize(("sessions", "expected"), [(1, 8), (3, 3)])
def test_as_many_at_once_as_there_is_memory_for(pairs, monkeypatch, sessions, expected):
    llm = load(pairs, "none", sessions=sessions)
    running, most = set(), []
    together, finish = threading.Barrier(expected, timeout=60), GenerationStream.finish

    def counted(self):
        running.add(self)
        most.append(len(running))
        if len(most) <= expected:
            together.wait()  # as many must be there at once
        result = finish(self)
        running.discard(self)
        return result

    monkeypatch.setattr(GenerationStream, "finish", counted)
    assert len(llm.generate(PROMPTS, **OPTIONS)) == len(PROMPTS)
    assert max(most) == expected


def test_wrong_prompts_are_told_by_their_place_before_any_text_begins(pairs, monkeypatch):
    llm = load(pairs, "none")
    monkeypatch.setattr(LLM, "stream", None)
    for wrong, error, message in (
        ("", InputError, "the prompt is empty"),
        ([1, -1], InputError, "token id -1"),
        (7, InputError, "the prompt is 7"),
        ([1] * 5000, ContextLengthError, "longer than the model's context length"),
    ):
        with pytest.raises(error, match=rf"prompts\[2\]: .*{message}"):
            llm.generate(["a", "b", wrong, "c"])


def test_unknown_and_wrong_options_are_errors_as_for_one(pairs):
    llm = load(pairs, "none")
    with pytest.raises(InputError, match="top_p is 7"):
        llm.generate(PROMPTS, top_p=7)
    with pytest.raises(TypeError, match="unknown option 'max_tokens'"):
        llm.generate(PROMPTS, max_tokens=7)


def test_the_first_error_ends_the_others(pairs, monkeypatch):
    llm = load(pairs, "none", sessions=3)
    streams, begin = [], LLM.stream

    def noted(self, *arguments, **options):
        streams.append(begin(self, *arguments, **options))
        return streams[-1]

    def fail(call):
        if call == 40:
            raise DeviceError("the device is gone")

    monkeypatch.setattr(LLM, "stream", noted)
    on_every_call(monkeypatch, llm, "target", fail)
    with pytest.raises(DeviceError, match="the device is gone"):
        llm.generate(PROMPTS, max_new_tokens=200)
    assert len(streams) == 3
    ended = [stream.generation.result for stream in streams]
    assert ended.count(None) >= 1  # those of the pass that failed, which may be all three
    assert {result.finish_reason for result in ended if result} <= {"cancelled"}
    running = [each.name for each in threading.enumerate()]
    assert not [name for name in running if name.startswith("edgespec-at-once")]
    assert llm.generate(SHORT_PROMPT, **OPTIONS).tokens == fresh(pairs, SHORT_PROMPT).tokens


def test_a_model_that_is_closed_meanwhile_leaves_nothing_running(pairs, monkeypatch):
    llm = load(pairs, "none", sessions=2)
    closer = threading.Thread(target=llm.close)
    on_every_call(monkeypatch, llm, "target", lambda call: closer.start() if call == 20 else None)
    with pytest.raises(InputError, match="the model was closed"):
        llm.generate(PROMPTS, max_new_tokens=200)
    closer.join(60)
    assert not closer.is_alive()


def test_type_checkers_know_both_forms():
    one, several = get_overloads(LLM.generate)
    assert one.__annotations__["return"] == "GenerationResult"
    assert several.__annotations__["return"] == "list[GenerationResult]"
