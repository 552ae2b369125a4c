"""Sessions: what caches keep saves work and never changes a text, and stays within its memory."""

from __future__ import annotations

import random
import threading

import pytest
from pairs import ENGINES, LONG_PROMPT, SHORT_PROMPT
from sessions import DRAFTS, OPTIONS, fresh, load, turns
from watching import executables

from edgespec import LLM
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.engines.host import HostCache
from edgespec.runtime.execution.slots import Slots

# The text


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("fields", [{}, {"temperature": 2.0}], ids=["greedy", "sampled"])
def test_texts_of_a_session_are_those_of_its_prompts_alone(pairs, draft, engine, fields):
    llm = load(pairs, draft, device=engine, draft_device=engine)
    with llm.session() as session:
        reused = 0
        for prompt in turns(llm, 8):
            result = session.generate(prompt, **OPTIONS, **fields)
            assert result.tokens == fresh(pairs, prompt, **fields).tokens
            held = session.tokens
            assert list(held) == (prompt + result.tokens)[: len(held)]
            reused += result.reused
    assert reused > 200


def test_a_draft_model_that_sees_a_window_of_a_session(pairs):
    """It knows 100 positions, fewer than most turns have."""
    plain, llm = pairs.llm("stranger", ENGINES[0], "none"), load(pairs, "model", "stranger")
    with llm.session() as session:
        for prompt in turns(llm, 8):
            result = session.generate(prompt, **OPTIONS)
            assert result.tokens == plain.generate(prompt, **OPTIONS).tokens
            assert result.drafted > 0


def test_layer_skip_drafts_in_a_session(pairs, tmp_path):
    from checkpoints import make_checkpoint, write_tokenizer

    from edgespec.export import ExportOptions, export_bundle

    make_checkpoint(tmp_path / "target", "llama", num_hidden_layers=4)
    write_tokenizer(tmp_path / "target", 331)
    options = ExportOptions("fp32", skip_sets=("1",))
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
    llm = load(pairs, sessions=4)
    with llm.session() as session:  # whose caches are its own
        session.generate(LONG_PROMPT, **OPTIONS)
        results = [llm.generate(LONG_PROMPT, **OPTIONS) for _ in range(2)]
    assert [result.reused for result in results] == [0, 0]


@pytest.mark.parametrize("draft", ["auto", "parallel"])
def test_texts_share_beginnings_where_that_is_asked_for(pairs, draft):
    llm = load(pairs, draft, prefix_reuse=True, sessions=4)
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    reused = []
    for tail in ([5, 6], [5, 6, 7], [9]):
        result = llm.generate(prompt + tail, **OPTIONS)
        assert result.tokens == fresh(pairs, prompt + tail).tokens
        reused.append(result.reused)
    assert reused == [0, len(prompt) + 2, len(prompt)]
    assert len(llm._texts.shared.slots._slots) == 1  # with one set of caches


def test_a_new_session_copies_what_another_knows(pairs):
    llm = load(pairs, sessions=4)
    one, other = llm.session(), llm.session()
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    one.generate([*prompt, 5], **OPTIONS)
    held = one.tokens
    result = other.generate([*prompt, 9], **OPTIONS)
    assert result.reused == len(prompt)
    assert result.tokens == fresh(pairs, [*prompt, 9]).tokens
    assert one.tokens == held
    assert one.generate([*prompt, 5], **OPTIONS).tokens == fresh(pairs, [*prompt, 5]).tokens


def test_a_draft_that_cannot_take_over_what_another_session_knows_reads_it(pairs, monkeypatch):
    llm = load(pairs, "model", sessions=4)
    one, other = llm.session(), llm.session()
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    one.generate([*prompt, 5], **OPTIONS)
    [executable] = executables(llm, "draft")
    new_cache, failed = executable.new_cache, []

    def fail(*_):
        failed.append(True)
        raise MemoryError("out of memory")

    def made(*sizes):
        cache = new_cache(*sizes)
        monkeypatch.setattr(cache, "load", fail)
        return cache

    monkeypatch.setattr(executable, "new_cache", made)
    result = other.generate([*prompt, 9], **OPTIONS)
    assert failed
    assert result.reused == len(prompt)
    assert result.drafted
    assert result.tokens == fresh(pairs, [*prompt, 9]).tokens


def test_a_target_that_cannot_take_over_what_another_session_knows_is_an_error(pairs, monkeypatch):
    llm = load(pairs, "none", sessions=4)
    one, other = llm.session(), llm.session()
    one.generate(LONG_PROMPT, **OPTIONS)

    def fail(*_):
        raise RuntimeError("device lost")

    monkeypatch.setattr(HostCache, "read", fail)
    with pytest.raises(DeviceError, match=r"onnxruntime:cpu failed \(device lost\)"):
        other.generate(LONG_PROMPT, **OPTIONS)
    monkeypatch.undo()
    assert other.generate(LONG_PROMPT, **OPTIONS).tokens == fresh(pairs, LONG_PROMPT).tokens


def test_a_cancelled_text_can_be_gone_on_from(pairs):
    llm = load(pairs)
    with llm.session() as session:
        stream = session.stream(LONG_PROMPT, **OPTIONS)
        pieces = iter(stream)
        for _ in range(3):
            next(pieces)
        stream.close()
        prompt = [*llm.tokenizer.encode(LONG_PROMPT), 4, 5]
        result = session.generate(prompt, **OPTIONS)
        assert result.tokens == fresh(pairs, prompt).tokens
        assert result.reused >= len(prompt) - 2


def test_a_failed_text_leaves_nothing(pairs, monkeypatch):
    llm = load(pairs)
    with llm.session() as session:
        session.generate(LONG_PROMPT, **OPTIONS)
        monkeypatch.setattr(llm.target.executables[0], "run", fail)
        with pytest.raises(DeviceError):
            session.generate(LONG_PROMPT + "x", **OPTIONS)
        monkeypatch.undo()
        assert session.tokens == ()
        result = session.generate(LONG_PROMPT, **OPTIONS)
        assert (result.reused, result.tokens) == (0, fresh(pairs, LONG_PROMPT).tokens)


def fail(*_):
    raise RuntimeError("the device is gone")


def test_one_text_of_a_session_at_a_time(pairs):
    llm = load(pairs)
    with llm.session() as session:
        first = session.stream(LONG_PROMPT, **OPTIONS)
        next(iter(first))
        with pytest.raises(InputError, match="open another session"):
            session.generate(SHORT_PROMPT)
        assert first.finish().tokens == fresh(pairs, LONG_PROMPT).tokens
        assert session.generate(SHORT_PROMPT, **OPTIONS).tokens == fresh(pairs, SHORT_PROMPT).tokens


# Memory


def test_the_least_recently_used_give_way(pairs):
    """One text of 512 tokens has memory: two of 256 do, and not three."""
    llm = load(pairs, "none", context=512)
    sessions = [llm.session() for _ in range(3)]
    for session in sessions:
        session.generate(SHORT_PROMPT, **OPTIONS)
    assert [bool(session.tokens) for session in sessions] == [False, True, True]
    sessions[1].generate(SHORT_PROMPT, **OPTIONS)
    again = sessions[0].generate(SHORT_PROMPT, **OPTIONS)
    assert [bool(session.tokens) for session in sessions] == [True, True, False]
    assert again.tokens == fresh(pairs, SHORT_PROMPT).tokens


@pytest.mark.parametrize("draft", ["none", "model"])
def test_caches_stay_within_what_was_planned(pairs, draft):
    llm = load(pairs, draft, context=512, sessions=2)
    planned = sum(demand.kv for demand in llm.deployment.devices)
    alone = load(pairs, draft, context=512)
    assert planned == 2 * sum(demand.kv for demand in alone.deployment.devices)
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
    assert llm._texts.shared.slots._slots == []


def test_a_stream_of_a_session_that_was_closed_is_refused(pairs):
    llm = load(pairs)
    session = llm.session()
    stream = session.stream(SHORT_PROMPT, **OPTIONS)
    session.close()
    with pytest.raises(InputError, match="the session is closed"):
        stream.finish()
    assert llm._texts.shared.slots._slots == []


def test_a_model_that_is_closed_while_a_text_begins_ends_it(pairs, monkeypatch):
    llm = load(pairs)
    enter, closing = Slots.enter, []

    def enter_and_close(*arguments):
        slot = enter(*arguments)
        closing.append(threading.Thread(target=llm.close))
        closing[0].start()
        return slot

    monkeypatch.setattr(Slots, "enter", enter_and_close)
    result = llm.generate(LONG_PROMPT, max_new_tokens=300)
    closing[0].join()
    assert result.finish_reason == "cancelled"


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


# Who drafts


def test_each_text_may_have_another_drafter(pairs):
    llm = load(pairs, "auto")
    assert llm.draft_sources == ("auto", "none", "model", "parallel", "lookup", "recycling")
    with llm.session() as session:
        for prompt, source in zip(turns(llm, 12), llm.draft_sources * 2, strict=True):
            result = session.generate(prompt, draft_source=source, **OPTIONS)
            assert (result.draft, result.tokens) == (source, fresh(pairs, prompt).tokens)
            assert not result.drafted or source != "none"


def test_a_drafter_that_was_not_loaded_is_refused(pairs):
    for draft, offered in (("none", "none"), ("lookup", "none, lookup, recycling")):
        llm = load(pairs, draft)
        with pytest.raises(InputError, match=f"'{draft}' offers {offered}$"):
            llm.stream(SHORT_PROMPT, draft_source="model")
