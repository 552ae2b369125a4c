"""Several texts at once: each is what it is alone, and whoever reads one may stop."""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import nullcontext
from contextvars import ContextVar

import pytest
from native_llms import loaded, with_library
from pairs import LONG_PROMPT, SHORT_PROMPT
from sessions import OPTIONS, turns

from edgespec import LLM
from edgespec.errors import ContextLengthError, DeviceError, InputError
from edgespec.llm.llm import inside
from edgespec.llm.result import PromptProgress
from edgespec.llm.stream import Stream

pytestmark = with_library

LONG = {"max_new_tokens": 200}
PROMPTS = [SHORT_PROMPT, LONG_PROMPT, *(f"def f{number}(x):\n" for number in range(9))]


def together(*works):
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


class Watched:
    """A graph that calls a function with the number of each call before it."""

    def __init__(self, graph, watch):
        self.graph = graph
        self.watch = watch
        self.calls = 0

    def __call__(self, feeds):
        self.calls += 1
        self.watch(self.calls)
        return self.graph(feeds)


def watch(monkeypatch, llm, function):
    target = inside(llm).engine.target
    monkeypatch.setattr(target, "graph", Watched(target.graph, function))


# Pieces


def test_pieces_are_the_text(natives):
    llm = natives("llama")
    text = llm.generate(LONG_PROMPT, **LONG).text
    held_back = tuple(text[start : start + 6] + "\0" for start in (9, 30, len(text) - 6))
    for source in llm.draft_sources:
        stream = llm.stream(LONG_PROMPT, stop=held_back, draft_source=source, **LONG)
        with pytest.raises(InputError, match="no result yet"):
            _ = stream.result
        pieces = list(stream)
        assert all(pieces)
        assert "".join(pieces) == stream.result.text == text
        assert stream.tokens == 200
    whole = llm.tokenizer.decode([*llm.tokenizer.encode(LONG_PROMPT), *stream.result.tokens])
    assert LONG_PROMPT + text == whole


@pytest.mark.parametrize("draft", ["none", "auto"])
def test_how_far_a_prompt_is_read_is_told(natives, draft):
    llm = natives("llama", draft)
    llm.forget()
    tokens = llm.tokenizer.encode(LONG_PROMPT)
    prompt = tokens * (400 // len(tokens) + 1)
    fresh = llm.stream(prompt, max_new_tokens=4)
    known = llm.stream(prompt, max_new_tokens=4)
    assert fresh.prompt_progress == PromptProgress(0, len(prompt))
    steps = []
    for event in fresh.events():
        if isinstance(event, PromptProgress):
            assert event == fresh.prompt_progress
            steps.append(event)
    read = [progress.read for progress in steps]
    assert len(read) > 2, "a pass reads but a part of such a prompt"
    assert read == sorted(set(read))
    assert read[-1] == len(prompt)
    assert {progress.total for progress in steps} == {len(prompt)}
    assert {progress.reused for progress in steps} == {0}
    seconds = [progress.seconds for progress in steps]
    assert 0 < seconds[0] <= seconds[-1] <= fresh.result.ttft_ms / 1e3 + 1e-3
    [progress] = [each for each in known.events() if isinstance(each, PromptProgress)]
    assert progress.read == len(prompt)
    assert progress.reused == known.result.reused > read[0]


@pytest.mark.parametrize("draft", ["none", "auto"])
def test_cancelling_ends_a_text_behind_the_round(natives, draft):
    llm = natives("llama", draft)
    expected = natives("llama", "none").generate(LONG_PROMPT, **LONG).tokens
    stream = llm.stream(LONG_PROMPT, **LONG)
    pieces = [next(iter(stream)) for _ in range(3)]
    stream.cancel()
    pieces += stream
    result = stream.result
    assert result.finish_reason == "cancelled"
    assert result.tokens == expected[: result.new_tokens]
    assert result.new_tokens < 200
    assert "".join(pieces) == result.text
    early = llm.stream(SHORT_PROMPT)
    early.cancel()
    assert (early.finish().finish_reason, early.result.tokens) == ("cancelled", [])


def test_a_text_that_is_cancelled_or_left_leaves_others(natives):
    llm = natives("llama")
    expected = natives("llama", "none").generate(SHORT_PROMPT, **LONG).tokens
    cancelled, left, other = (llm.stream(SHORT_PROMPT, **LONG) for _ in range(3))
    for stream in (cancelled, left, other):
        next(iter(stream))
    cancelled.cancel()
    left.close()
    assert cancelled.finish().tokens == expected[: len(cancelled.result.tokens)]
    with pytest.raises(InputError, match="was closed or failed before its end"):
        left.result  # noqa: B018
    assert other.finish().tokens == expected
    for _ in llm.stream(SHORT_PROMPT, **LONG):
        break  # nobody has it any more
    assert not inside(llm).engine.running


def test_streams_of_one_thread_may_take_turns(natives):
    llm = natives("llama")
    jobs = [
        (LONG_PROMPT, {"temperature": 2.5, "seed": 1}),
        (SHORT_PROMPT, {}),
        ("import os", {"temperature": 1.0, "seed": 2}),
    ]
    streams = [llm.stream(prompt, max_new_tokens=60, **fields) for prompt, fields in jobs]
    for _ in itertools.zip_longest(*streams):
        pass
    for stream, (prompt, fields) in zip(streams, jobs, strict=True):
        alone = natives("llama", "none").generate(prompt, max_new_tokens=60, **fields)
        assert stream.result.tokens == alone.tokens


# Threads


@pytest.mark.parametrize("sessions", [1, 8])
def test_texts_of_eight_threads_are_what_each_is_alone(natives, pairs, sessions):
    with loaded(pairs, "llama", sessions=sessions) as llm:
        prompts = list(turns(llm, 8, seed=2))
        alone = [natives("llama", "none").generate(each, **OPTIONS).tokens for each in prompts]
        found = {}

        def work(number):
            for step in range(3):
                place = (number + 3 * step) % len(prompts)
                result = llm.generate(prompts[place], **OPTIONS)
                found[number, step] = result.tokens == alone[place]

        together(*[lambda number=number: work(number) for number in range(8)])
        assert found == {(number, step): True for number in range(8) for step in range(3)}
        llm.forget()
        assert not any(model.pool.used for model in inside(llm).models.values())


def test_many_texts_take_far_fewer_passes_than_tokens(pairs, monkeypatch):
    with loaded(pairs, "llama", "none") as llm:
        passes = []
        watch(monkeypatch, llm, passes.append)
        results = llm.generate(PROMPTS, max_new_tokens=40)
        assert len(passes) < sum(each.new_tokens for each in results) / 2
        assert [each.rounds for each in results] == [39] * len(PROMPTS)


def test_several_answers_to_one_prompt_share_it(natives):
    llm = natives("llama")
    llm.forget()
    length = len(llm.tokenizer.encode(LONG_PROMPT))
    streams = [llm.stream(LONG_PROMPT, temperature=1.0, seed=seed, **LONG) for seed in range(3)]
    for _ in itertools.zip_longest(*streams):
        pass
    assert [stream.result.reused for stream in streams] == [0, length - 1, length - 1]
    for seed, stream in enumerate(streams):
        alone = natives("llama", "none").generate(LONG_PROMPT, temperature=1.0, seed=seed, **LONG)
        assert stream.result.tokens == alone.tokens


def test_a_short_text_that_comes_late_ends_long_before_a_long_one(natives):
    llm = natives("llama", "none")
    long = llm.stream(LONG_PROMPT, max_new_tokens=250)
    pieces = iter(long)
    done = []
    next(pieces)

    def work():
        llm.generate(SHORT_PROMPT, max_new_tokens=8)
        done.append(len(long.rounds))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in pieces:
        pass
    thread.join()
    assert done[0] < 150


def test_a_long_prompt_can_be_cancelled_and_what_was_read_stays(pairs, monkeypatch):
    prompt = [number % 300 + 1 for number in range(400)]
    with loaded(pairs, "llama", "none") as llm:
        expected = llm.generate(prompt, **OPTIONS).tokens
        llm.forget()
        stream = llm.stream(prompt, **OPTIONS)
        watch(monkeypatch, llm, lambda call: stream.cancel() if call == 2 else None)
        assert (stream.finish().finish_reason, stream.result.tokens) == ("cancelled", [])
        monkeypatch.undo()
        again = llm.generate(prompt, **OPTIONS)
        assert (again.reused, again.tokens) == (256, expected)


# Lists of prompts


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}])
def test_a_list_of_prompts_gives_their_texts_in_order(natives, options):
    llm = natives("llama")
    plain = natives("llama", "none")
    expected = [plain.generate(prompt, **OPTIONS, **options).tokens for prompt in PROMPTS]
    assert [each.tokens for each in llm.generate(PROMPTS, **OPTIONS, **options)] == expected
    mixed = [PROMPTS[0], llm.tokenizer.encode(PROMPTS[1])]
    assert [each.tokens for each in llm.generate(mixed, **OPTIONS, **options)] == expected[:2]


@pytest.mark.parametrize(("sessions", "expected"), [(1, 8), (3, 3)])
def test_as_many_at_once_as_there_is_memory_for(pairs, monkeypatch, sessions, expected):
    running = set()
    most = []
    ready = threading.Barrier(expected, timeout=60)
    finish = Stream.finish

    def counted(self):
        running.add(self)
        most.append(len(running))
        if len(most) <= expected:
            ready.wait()  # as many must be there at once
        result = finish(self)
        running.discard(self)
        return result

    monkeypatch.setattr(Stream, "finish", counted)
    with loaded(pairs, "llama", "none", sessions=sessions) as llm:
        assert len(llm.generate(PROMPTS, **OPTIONS)) == len(PROMPTS)
    assert max(most) == expected


def test_wrong_prompts_are_told_by_their_place_before_any_text_begins(natives, monkeypatch):
    llm = natives("llama")
    monkeypatch.setattr(LLM, "submit", None)
    for wrong, error, message in (
        ("", InputError, "the prompt is empty"),
        ([1, -1], InputError, "token id -1"),
        (7, InputError, "the prompt is 7"),
        ([1] * 5000, ContextLengthError, "longer than the model's context length"),
    ):
        with pytest.raises(error, match=rf"prompts\[2\]: .*{message}"):
            llm.generate(["a", "b", wrong, "c"])


def test_the_first_error_ends_the_others(pairs, natives, monkeypatch):
    def fail(call):
        if call == 40:
            raise DeviceError("the device is gone")

    with loaded(pairs, "llama", "none") as llm:
        watch(monkeypatch, llm, fail)
        with pytest.raises(DeviceError, match="the device is gone"):
            llm.generate(PROMPTS, **LONG)
        assert not inside(llm).engine.running
        running = [each.name for each in threading.enumerate()]
        assert not [name for name in running if name.startswith("edgespec-at-once")]
        expected = natives("llama", "none").generate(SHORT_PROMPT, **OPTIONS).tokens
        assert llm.generate(SHORT_PROMPT, **OPTIONS).tokens == expected


def test_a_model_that_is_closed_meanwhile_leaves_nothing_running(pairs, monkeypatch):
    llm = loaded(pairs, "llama", "none", sessions=2)
    closer = threading.Thread(target=llm.close)
    watch(monkeypatch, llm, lambda call: closer.start() if call == 20 else None)
    with pytest.raises(InputError, match="the model was closed"):
        llm.generate(PROMPTS, **LONG)
    closer.join(60)
    assert not closer.is_alive()


# asyncio


def test_texts_for_async_for(natives):
    llm = natives("llama")

    async def read(prompt):
        stream = llm.stream(prompt, **OPTIONS)
        pieces = [piece async for piece in stream]
        assert "".join(pieces) == stream.result.text
        return stream.result.tokens

    async def both():
        return await asyncio.gather(read(LONG_PROMPT), read(SHORT_PROMPT))

    plain = natives("llama", "none")
    expected = [plain.generate(each, **OPTIONS).tokens for each in (LONG_PROMPT, SHORT_PROMPT)]
    assert asyncio.run(both()) == expected


def test_a_text_is_made_in_its_readers_context(pairs, monkeypatch):
    """As `asyncio.to_thread` does: what is logged meanwhile can name the request."""
    request = ContextVar("request")
    seen = set()

    async def read(llm):
        request.set("mine")
        async for _ in llm.stream(SHORT_PROMPT, **OPTIONS):
            pass

    with loaded(pairs, "llama", "none") as llm:
        watch(monkeypatch, llm, lambda _: seen.add(request.get(None)))
        asyncio.run(read(llm))
    assert seen == {"mine"}


@pytest.mark.parametrize("leaves", ["cancelled", "cancelled twice", "break"])
def test_a_text_that_a_task_leaves_is_cancelled(natives, leaves):
    llm = natives("llama", "none")
    stream = llm.stream(LONG_PROMPT, **LONG)

    async def read():
        async for _ in stream:
            if leaves == "break":
                break

    async def leave():
        task = asyncio.create_task(read())
        while not stream.rounds and not task.done():
            await asyncio.sleep(0.001)
        for _ in range(1 + (leaves == "cancelled twice")):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
        await asyncio.sleep(0)  # a loop that is left ends behind its task

    asyncio.run(leave())
    assert stream.result.finish_reason == "cancelled"
    assert len(stream.rounds) < 199
    assert not inside(llm).engine.running


@pytest.mark.parametrize("failing", [False, True])
def test_an_event_loop_that_ends_ends_the_texts_of_its_tasks(pairs, failing):
    streams = []

    async def read(llm):
        streams.append(llm.stream(LONG_PROMPT, max_new_tokens=300))
        async for _ in streams[-1]:
            pass

    async def work(llm):
        tasks = [asyncio.create_task(read(llm)) for _ in range(3)]
        while not all(stream.rounds for stream in streams) or len(streams) < 3:
            await asyncio.sleep(0.001)
        if failing:
            raise RuntimeError(f"with {len(tasks)} texts under way")

    with loaded(pairs, "llama", "none", sessions=3) as llm:
        with pytest.raises(RuntimeError, match="3 texts") if failing else nullcontext():
            asyncio.run(work(llm))
        assert [stream.result.finish_reason for stream in streams] == ["cancelled"] * 3
        assert not inside(llm).engine.running
