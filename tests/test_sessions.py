"""Sessions: what caches keep saves work and never changes a text, whoever else uses the model."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import numpy as np
import pytest
from pairs import ENGINES, LONG_PROMPT, SHORT_PROMPT, logits_of
from safetensors.numpy import load_file, save_file

from edgespec import LLM
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.model import Model
from edgespec.runtime.slots import Slots

DRAFTS = ("none", "model", "auto")
OPTIONS = {"max_new_tokens": 40, "seed": 3}


def load(pairs, draft="auto", name="llama", **options):
    """A bundle of its own: what sessions do is not seen by other tests."""
    place = {"device": ENGINES[0], "draft_device": ENGINES[0], "threads": 1}
    return LLM(pairs.pair(name).path, draft=draft, **{**place, **options})


@pytest.fixture(scope="module")
def fresh(pairs):
    """The text that a prompt has without any session."""
    llm = pairs.llm("llama", ENGINES[0], "none")
    return lambda prompt, **options: llm.generate(prompt, **{**OPTIONS, **options})


def turns(llm, count, seed=0):
    """Prompts that go on from each other's texts, go back, or begin anew."""
    rng, text = random.Random(seed), llm.tokenizer.encode(LONG_PROMPT)
    for _ in range(count):
        yield text
        kept = rng.choice([0, len(text) // 3, len(text), len(text)])
        text = text[:kept] + [rng.randrange(1, 300) for _ in range(rng.randrange(1, 40))]


# The text


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("fields", [{}, {"temperature": 2.0}], ids=["greedy", "sampled"])
def test_texts_of_a_session_are_those_of_its_prompts_alone(pairs, fresh, draft, engine, fields):
    llm = load(pairs, draft, device=engine, draft_device=engine)
    with llm.session() as session:
        reused = 0
        for prompt in turns(llm, 8):
            result = session.generate(prompt, **OPTIONS, **fields)
            assert result.tokens == fresh(prompt, **fields).tokens
            held = session.tokens
            assert list(held) == (prompt + result.tokens)[: len(held)]
            reused += result.reused
    assert reused > 200


def test_layer_skip_drafts_in_a_session(pairs, tmp_path):
    from checkpoints import make_checkpoint, write_tokenizer

    from edgespec.export import ExportOptions, export_bundle

    make_checkpoint(tmp_path / "target", "llama", num_hidden_layers=4)
    write_tokenizer(tmp_path / "target", 331)
    options = ExportOptions("fp32", skip_sets=((2, 3),))
    export_bundle(tmp_path / "target", tmp_path / "bundle", options=options)
    place = {"device": ENGINES[0], "threads": 1}
    plain = LLM(tmp_path / "bundle", draft="none", **place)
    with LLM(tmp_path / "bundle", draft="layer-skip", **place) as llm, llm.session() as session:
        for prompt in turns(llm, 5):
            expected = plain.generate(prompt, max_new_tokens=30)
            assert session.generate(prompt, max_new_tokens=30).tokens == expected.tokens


def test_what_the_prompt_shares_with_the_last_text_is_not_run_again(pairs):
    llm = load(pairs, "none")
    with llm.session() as session:
        first = session.generate(LONG_PROMPT, **OPTIONS)
        assert first.reused == 0
        text = llm.tokenizer.encode(LONG_PROMPT) + first.tokens
        again = session.generate([*text, 7, 8], **OPTIONS)
        # The last token that was chosen was never fed.
        assert again.reused == len(text) - 1
        assert session.generate(text[:10], **OPTIONS).reused == 9


def test_a_text_without_a_session_begins_anew(pairs):
    llm = load(pairs)
    results = [llm.generate(LONG_PROMPT, **OPTIONS) for _ in range(2)]
    assert [result.reused for result in results] == [0, 0]


def test_texts_share_beginnings_where_that_is_asked_for(pairs, fresh):
    llm = load(pairs, prefix_reuse=True, sessions=4)
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    reused = []
    for tail in ([5, 6], [5, 6, 7], [9]):
        result = llm.generate(prompt + tail, **OPTIONS)
        assert result.tokens == fresh(prompt + tail).tokens
        reused.append(result.reused)
    assert reused == [0, len(prompt) + 2, len(prompt)]


def test_a_new_session_copies_what_another_knows(pairs, fresh):
    llm = load(pairs, sessions=4)
    one, other = llm.session(), llm.session()
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    one.generate([*prompt, 5], **OPTIONS)
    held = one.tokens
    result = other.generate([*prompt, 9], **OPTIONS)
    assert result.reused == len(prompt)
    assert result.tokens == fresh([*prompt, 9]).tokens
    assert one.tokens == held
    assert one.generate([*prompt, 5], **OPTIONS).tokens == fresh([*prompt, 5]).tokens


def test_a_cancelled_text_can_be_gone_on_from(pairs, fresh):
    llm = load(pairs)
    with llm.session() as session:
        stream = session.stream(LONG_PROMPT, **OPTIONS)
        pieces = iter(stream)
        for _ in range(3):
            next(pieces)
        stream.close()
        prompt = [*llm.tokenizer.encode(LONG_PROMPT), 4, 5]
        result = session.generate(prompt, **OPTIONS)
        assert result.tokens == fresh(prompt).tokens
        assert result.reused >= len(prompt) - 2


def test_a_failed_text_leaves_nothing(pairs, fresh, monkeypatch):
    llm = load(pairs)
    with llm.session() as session:
        session.generate(LONG_PROMPT, **OPTIONS)
        monkeypatch.setattr(llm.target.executables[0], "run", fail)
        with pytest.raises(DeviceError):
            session.generate(LONG_PROMPT + "x", **OPTIONS)
        monkeypatch.undo()
        assert session.tokens == ()
        result = session.generate(LONG_PROMPT, **OPTIONS)
        assert (result.reused, result.tokens) == (0, fresh(LONG_PROMPT).tokens)


def fail(*_):
    raise RuntimeError("the device is gone")


def test_one_text_of_a_session_at_a_time(pairs, fresh):
    llm = load(pairs)
    with llm.session() as session:
        first = session.stream(LONG_PROMPT, **OPTIONS)
        next(iter(first))
        with pytest.raises(InputError, match="open another session"):
            session.generate(SHORT_PROMPT)
        assert first.finish().tokens == fresh(LONG_PROMPT).tokens
        assert session.generate(SHORT_PROMPT, **OPTIONS).tokens == fresh(SHORT_PROMPT).tokens


# Memory


def test_the_least_recently_used_give_way(pairs, fresh):
    """One text of 512 tokens has memory: two of 256 do, and not three."""
    llm = load(pairs, "none", context=512)
    sessions = [llm.session() for _ in range(3)]
    for session in sessions:
        session.generate(SHORT_PROMPT, **OPTIONS)
    assert [bool(session.tokens) for session in sessions] == [False, True, True]
    sessions[1].generate(SHORT_PROMPT, **OPTIONS)
    again = sessions[0].generate(SHORT_PROMPT, **OPTIONS)
    assert [bool(session.tokens) for session in sessions] == [True, True, False]
    assert again.tokens == fresh(SHORT_PROMPT).tokens


@pytest.mark.parametrize("draft", ["none", "model"])
def test_caches_stay_within_what_was_planned(pairs, draft):
    llm = load(pairs, draft, context=512, sessions=2)
    planned = sum(demand.kv for demand in llm.plan.devices)
    alone = load(pairs, draft, context=512)
    assert planned == 2 * sum(demand.kv for demand in alone.plan.devices)
    sessions = [llm.session() for _ in range(6)]
    rng = random.Random(1)
    for _ in range(20):
        prompt = llm.tokenizer.encode(LONG_PROMPT)[: rng.randrange(5, 200)]
        rng.choice(sessions).generate(prompt, max_new_tokens=rng.choice([4, 260]))
        assert sum(session._slot.bytes for session in sessions) <= planned


def test_a_closed_session_gives_its_memory_back(pairs):
    llm = load(pairs)
    session = llm.session()
    session.generate(SHORT_PROMPT, **OPTIONS)
    session.close()
    session.close()
    for use in (lambda: session.tokens, lambda: session.generate(SHORT_PROMPT)):
        with pytest.raises(InputError, match="closed"):
            use()
    assert llm._slots._slots == []


def test_a_closed_model_ends_its_texts(pairs):
    llm = load(pairs)
    stream = llm.stream(LONG_PROMPT, max_new_tokens=200)
    waiting = llm.stream(LONG_PROMPT, max_new_tokens=200)
    next(iter(stream))
    llm.close()
    llm.close()
    assert stream.finish().finish_reason == "cancelled"
    for use in (lambda: llm.generate(SHORT_PROMPT), llm.session, waiting.finish):
        with pytest.raises(InputError, match="closed"):
            use()


def test_what_a_session_refused_leaves_it_free_for_another_try(pairs, monkeypatch):
    with load(pairs) as llm, llm.session() as session:
        with monkeypatch.context() as patch:
            patch.setattr(Slots, "make_ready", fail)
            with pytest.raises(RuntimeError, match="gone"):
                session.generate(SHORT_PROMPT, **OPTIONS)
        assert session.generate(SHORT_PROMPT, **OPTIONS).new_tokens == OPTIONS["max_new_tokens"]


# Files


@pytest.mark.parametrize(("draft", "engine"), [("none", ENGINES[1]), ("model", ENGINES[0])])
def test_a_saved_session_goes_on_elsewhere(pairs, fresh, tmp_path, draft, engine):
    file = tmp_path / "session"
    llm = load(pairs, draft, device=engine, draft_device=engine)
    with llm.session() as session:
        session.generate(LONG_PROMPT, **OPTIONS)
        held = session.tokens
        session.save(file)
    for name in DRAFTS:  # whatever drafts there
        other = load(pairs, name, device=engine, draft_device=engine)
        with other.load_session(file) as session:
            assert session.tokens == held
            result = session.generate([*held, 4, 5], **OPTIONS)
            assert result.reused == len(held)
            assert result.tokens == fresh([*held, 4, 5]).tokens


@pytest.mark.parametrize("draft", ["none", "model"])
def test_a_longer_session_is_cut_to_what_was_planned(pairs, fresh, tmp_path, draft):
    prompt = load(pairs, draft).tokenizer.encode(LONG_PROMPT)
    with load(pairs, draft).session() as session:
        session.generate(prompt * 2, max_new_tokens=2)
        session.save(tmp_path / "session")
    llm = load(pairs, draft, context=128)
    session = llm.load_session(tmp_path / "session")
    assert len(session.tokens) == 128
    assert session._slot.bytes <= sum(demand.kv for demand in llm.plan.devices)
    result = session.generate(prompt[:80], max_new_tokens=20)
    assert result.reused == 79
    assert result.tokens == fresh(prompt[:80], max_new_tokens=20).tokens


def test_an_empty_session_can_be_saved(pairs, tmp_path):
    llm = load(pairs)
    llm.session().save(tmp_path / "session")
    assert llm.load_session(tmp_path / "session").tokens == ()


def test_files_that_are_no_session_of_the_bundle_are_refused(pairs, tmp_path):
    llm, file, bad = load(pairs, "model"), tmp_path / "session", tmp_path / "bad"
    with llm.session() as session:
        session.generate(SHORT_PROMPT, **OPTIONS)
        session.save(file)
    with pytest.raises(InputError, match="another session"):
        load(pairs, name="twin").load_session(file)
    with pytest.raises(InputError, match="cannot be read"):
        llm.load_session(tmp_path / "missing")
    bad.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match="cannot be read"):
        llm.load_session(bad)
    tensors, metadata = load_file(file), {"kind": "edgespec session", "version": "1"}
    save_file(tensors, bad, {**metadata, "version": "2"})
    with pytest.raises(InputError, match="no session of version 1"):
        llm.load_session(bad)
    metadata["bundle"] = llm.bundle.digest
    damaged = (
        ("target.0", tensors["target.0"][:, :, :, 1:]),
        ("draft.0", tensors["draft.0"].astype(np.float64)),
        ("target.tokens", tensors["target.tokens"].astype(np.int32)),
        ("target.tokens", np.array(5)),
    )
    for name, array in damaged:
        save_file({**tensors, name: np.array(array, order="C")}, bad, metadata)
        with pytest.raises(InputError, match="is damaged"):
            llm.load_session(bad)
    assert llm._slots._slots == []
    save_file(tensors, bad, metadata)
    assert llm.load_session(bad).tokens


def test_a_file_that_cannot_be_written_leaves_the_old_one(pairs, tmp_path, monkeypatch):
    llm, file = load(pairs, "none"), tmp_path / "session"
    session = llm.session()
    session.generate(SHORT_PROMPT, **OPTIONS)
    session.save(file)
    before = file.read_bytes()
    monkeypatch.setattr("edgespec.snapshots.save_file", no_space)
    with pytest.raises(InputError, match="No space left"):
        session.save(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(InputError, match="cannot be written"):
        session.save(tmp_path / "no folder" / "session")


def no_space(*_):
    raise OSError(28, "No space left on device")


# Threads


@pytest.mark.parametrize("reuse", [False, True])
def test_texts_of_many_threads_do_not_cross(pairs, fresh, reuse):
    llm = load(pairs, prefix_reuse=reuse, sessions=8)
    prompts = list(turns(llm, 8, seed=2))
    expected = [fresh(prompt).tokens for prompt in prompts]
    found = {}

    def work(number):
        for step in range(3):
            place = (number + 3 * step) % len(prompts)
            found[number, step] = llm.generate(prompts[place], **OPTIONS).tokens == expected[place]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {(number, step): True for number in range(8) for step in range(3)}


def test_texts_take_turns_round_by_round(pairs):
    """A short text that comes late ends long before a long one that has begun."""
    llm = load(pairs, "none")
    long = llm.stream(LONG_PROMPT, max_new_tokens=250)
    pieces = iter(long)
    next(pieces)
    short = llm.stream(SHORT_PROMPT, max_new_tokens=8)
    done = []

    def work():
        short.finish()
        done.append(len(long.rounds))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in pieces:
        pass
    thread.join()
    assert done[0] < 150


def test_one_thread_may_read_two_texts_in_turn(pairs, fresh):
    llm = load(pairs)
    streams = [llm.stream(prompt, **OPTIONS) for prompt in (LONG_PROMPT, SHORT_PROMPT)]
    open_ones = [iter(stream) for stream in streams]
    while open_ones:
        open_ones = [pieces for pieces in open_ones if next(pieces, None) is not None]
    for stream, prompt in zip(streams, (LONG_PROMPT, SHORT_PROMPT), strict=True):
        assert stream.result.tokens == fresh(prompt).tokens


def test_an_abandoned_text_holds_nobody_up(pairs, fresh):
    llm = load(pairs)
    next(iter(llm.stream(LONG_PROMPT, max_new_tokens=200)))
    assert llm.generate(SHORT_PROMPT, **OPTIONS).tokens == fresh(SHORT_PROMPT).tokens


def test_text_for_async_for(pairs, fresh):
    llm = load(pairs)

    async def read(prompt):
        stream = llm.stream(prompt, **OPTIONS)
        pieces = [piece async for piece in stream]
        assert "".join(pieces) == stream.result.text
        return stream.result.tokens

    async def both():
        return await asyncio.gather(read(LONG_PROMPT), read(SHORT_PROMPT))

    assert asyncio.run(both()) == [fresh(LONG_PROMPT).tokens, fresh(SHORT_PROMPT).tokens]


def test_a_cancelled_task_ends_its_text_within_a_round(pairs, monkeypatch):
    llm = load(pairs, "none")
    stream = llm.stream(LONG_PROMPT, max_new_tokens=200)

    async def read():
        async for _ in stream:
            pass

    async def cut():
        task = asyncio.create_task(read())
        while len(stream.rounds) < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        before = len(stream.rounds)
        with pytest.raises(asyncio.CancelledError):
            await task
        return before

    before = asyncio.run(cut())
    assert len(stream.rounds) <= before + 2


@pytest.mark.parametrize("leaves", ["cancelled", "break"])
def test_a_session_is_free_when_its_text_is_left(pairs, fresh, leaves):
    llm = load(pairs)

    async def read(stream):
        async for _ in stream:
            if leaves == "break":
                break

    async def leave(stream):
        task = asyncio.create_task(read(stream))
        while not stream.rounds and not task.done():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)  # a loop that is left ends behind its task

    with llm.session() as session:
        stream = session.stream(LONG_PROMPT, max_new_tokens=200)
        asyncio.run(leave(stream))
        assert stream.result.finish_reason == "cancelled"
        assert session.generate(SHORT_PROMPT, **OPTIONS).tokens == fresh(SHORT_PROMPT).tokens


# Log-probabilities


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 1.5, "top_k": 9}], ids=["greedy", "sampled"]
)
def test_logprobs_are_the_models_own_whatever_drafts(pairs, engine, fields):
    for draft in DRAFTS:
        llm = pairs.llm("llama", engine, draft)
        result = llm.generate(LONG_PROMPT, logprobs=5, **OPTIONS, **fields)
        prompt = llm.tokenizer.encode(LONG_PROMPT)
        logits = logits_of(pairs.pair("llama").target, [*prompt, *result.tokens])
        rows = logits[len(prompt) - 1 : -1].astype(np.float64)[:, : llm.tokenizer.vocab_size]
        expected = rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)
        assert [each.token for each in result.logprobs] == result.tokens
        for each, row in zip(result.logprobs, expected, strict=True):
            assert each.logprob == pytest.approx(row[each.token], abs=2e-3)
            best = np.sort(row)[:-6:-1]
            assert [value for _, value in each.top] == pytest.approx(best, abs=2e-3)
            assert [row[id_] for id_, _ in each.top] == pytest.approx(best, abs=2e-3)


def test_logprobs_end_where_the_text_does(pairs):
    llm = pairs.llm("llama", ENGINES[0], "model")
    whole = llm.generate(LONG_PROMPT, **OPTIONS)
    assert whole.logprobs == ()
    cut = llm.generate(LONG_PROMPT, stop=(whole.text[10:14],), logprobs=0, **OPTIONS)
    assert len(cut.logprobs) == len(cut.tokens) < len(whole.tokens)
    assert {each.top for each in cut.logprobs} == {()}
    with pytest.raises(InputError, match="logprobs is -1"):
        llm.generate(LONG_PROMPT, logprobs=-1)


# What sessions stand on


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["llama", "half", "cut"])
def test_a_runner_goes_on_from_a_snapshot(pairs, engine, name):
    from edgespec import bundle
    from edgespec.runtime.engines import engine as engine_of
    from edgespec.runtime.runner import Runner

    model = Model.load(bundle.load(pairs.pair(name).path), "target", engine_of(engine), 1)
    text = [number % 300 + 1 for number in range(400)]
    one = Runner(model)
    one.prefill(text[:300])
    other = Runner(model)
    other.prefill(text[5:50])
    other.restore(one.tokens, one.snapshot(300))
    assert other.tokens == text[:300]
    expected = one.prefill(text[300:])["logits"][0].copy()
    np.testing.assert_allclose(other.prefill(text[300:])["logits"][0], expected, atol=1e-5)
    other.resume(text[:20])
    assert (other.length, other.tokens) == (19, text[:19])
    other.resume(text[1:])
    assert other.length == 0
    assert other.bytes == Runner(model).bytes


def test_a_long_prompt_is_read_in_turns_and_can_be_cancelled(pairs):
    """Others need not wait for all of it; what was read stays."""
    llm = load(pairs, "none")
    prompt = [number % 300 + 1 for number in range(400)]
    with llm.session() as session:
        expected = llm.generate(prompt, **OPTIONS)
        stream = session.stream(prompt, **OPTIONS)
        steps, inner = [], llm.target.executables[0].run

        def count(*arguments):
            steps.append(len(session._slot.tokens))
            if len(steps) == 2:
                stream.cancel()
            return inner(*arguments)

        llm.target.executables[0].run = count
        result = stream.finish()
        assert (result.finish_reason, result.tokens) == ("cancelled", [])
        assert steps == [0, 128]
        again = session.generate(prompt, **OPTIONS)
        assert (again.reused, again.tokens) == (256, expected.tokens)


def test_a_short_text_does_not_wait_for_a_long_prompt(pairs):
    llm = load(pairs, "none", sessions=2)
    long = llm.stream([number % 300 + 1 for number in range(450)], max_new_tokens=2)
    done = []
    thread = threading.Thread(target=lambda: done.append(long.finish()))
    with llm.turns:
        thread.start()
        short = threading.Thread(
            target=lambda: done.append(llm.generate(SHORT_PROMPT, max_new_tokens=1))
        )
        while not llm.turns._waiting:
            time.sleep(0.001)
        short.start()
        while len(llm.turns._waiting) < 2:
            time.sleep(0.001)
    thread.join(60)
    short.join(60)
    assert [result.new_tokens for result in done] == [1, 2]


# Who drafts


def test_each_text_may_have_another_drafter(pairs, fresh):
    llm = load(pairs, "auto")
    assert llm.draft_sources == ("auto", "none", "model", "lookup", "recycling")
    with llm.session() as session:
        for prompt, source in zip(turns(llm, 10), llm.draft_sources * 2, strict=True):
            result = session.generate(prompt, draft_source=source, **OPTIONS)
            assert (result.draft, result.tokens) == (source, fresh(prompt).tokens)
            assert not result.drafted or source != "none"


def test_a_drafter_that_was_not_loaded_is_refused(pairs):
    for draft, offered in (("none", "none"), ("lookup", "none, lookup, recycling")):
        llm = load(pairs, draft)
        with pytest.raises(InputError, match=f"'{draft}' offers {offered}$"):
            llm.stream(SHORT_PROMPT, draft_source="model")
