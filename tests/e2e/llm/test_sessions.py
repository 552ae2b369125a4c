"""Sessions: what they keep saves work, and never changes a text."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from damage import TIMES
from histories import nothing_is_left
from links import linked
from native_llms import loaded, with_library
from pairs import LONG_PROMPT, SHORT_PROMPT
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as torch_save
from servers import make_bundle
from sessions import OPTIONS, turns
from small_configs import RECURRENT

from edgespec import LLM, GenerationOptions
from edgespec.errors import DeviceError, InputError
from edgespec.llm.llm import inside
from edgespec.llm.request import GenerationRequest
from edgespec.llm.session_files import save
from edgespec.runtime.sequences.recurrent import CHECKPOINTS

pytestmark = with_library


def alone(natives, prompt, name="llama", **options):
    """The text of a prompt of which nothing is known."""
    llm = natives(name, "none")
    llm.forget()
    return llm.generate(prompt, **{**OPTIONS, **options}).tokens


@pytest.mark.parametrize("draft", ["none", "auto"])
@pytest.mark.parametrize(
    "name", ["llama", "small-caches", "gpt_oss", "lfm2-draft", "qwen3_5_text-draft", "mtp"]
)
@pytest.mark.parametrize("how", [{}, {"temperature": 2.0}], ids=["greedy", "sampled"])
def test_texts_of_a_session_are_those_of_its_prompts_alone(natives, draft, name, how):
    llm = natives(name, draft)
    with llm.session() as session:
        reused = 0
        for prompt in turns(llm, 6):
            result = session.generate(prompt, **OPTIONS, **how)
            assert result.tokens == alone(natives, prompt, name, **how)
            assert list(session.tokens) == (prompt + result.tokens)[:-1]
            reused += result.reused
    assert reused > 200


@pytest.mark.parametrize("name", ["llama", "lfm2-draft"])
def test_a_closed_session_keeps_nothing_of_texts_that_go_on(natives, name):
    llm = natives(name, "none")
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    with llm.session() as session:
        left = session.stream(prompt, **OPTIONS)
        next(iter(left))
        late = session.stream(prompt, **OPTIONS)
    assert late.finish().tokens == left.finish().tokens == alone(natives, prompt, name)
    llm.forget()
    assert inside(llm).engine.target.pool.used == 0


def test_a_session_that_nobody_has_any_more_keeps_nothing(natives):
    llm = natives("llama", "none")
    session = llm.session()
    session.generate(LONG_PROMPT, **OPTIONS)
    target = inside(llm).engine.target
    llm.forget()
    assert target.pool.used > 100
    del session
    llm.forget()
    assert target.pool.used == 0


def test_what_is_known_of_a_prompt_is_not_computed_again(natives):
    llm = natives("llama", "none")
    llm.forget()
    with llm.session() as session:
        first = session.generate(LONG_PROMPT, **OPTIONS)
        assert first.reused == 0
        text = llm.tokenizer.encode(LONG_PROMPT) + first.tokens
        again = session.generate([*text, 7, 8], **OPTIONS)
        assert again.reused == len(text) - 1  # the last token that was chosen was never fed
        assert session.generate(text[:10], **OPTIONS).reused == 9
        llm.forget()
        assert session.tokens  # which forgetting leaves


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_go_on_from_where_prompts_and_texts_ended(natives, name):
    llm = natives(name, "auto")
    how = {"logprobs": 3, **OPTIONS}
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    llm.forget()
    text = prompt + llm.generate(prompt, **OPTIONS).tokens
    for further, reused in (
        ([*text, 7], len(text) - 1),
        (prompt, len(prompt) - 1),
        ([*prompt, 9, 9], len(prompt) - 1),
        ([*text[:-3], 7], len(prompt) - 1),
        (prompt[:-2], 0),
    ):
        found = llm.generate(further, **how)
        assert found.reused == reused
        fresh = natives(name, "none")
        fresh.forget()
        expected = fresh.generate(further, **how)
        assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)
    answers = llm.generate([prompt[::-1]] * 3, **OPTIONS)
    assert sorted(each.reused for each in answers) == [0, len(prompt) - 1, len(prompt) - 1]
    llm.forget()
    assert nothing_is_left(inside(llm).engine.target)


def test_recurrent_models_keep_as_many_checkpoints_as_memory_is_planned_for(natives):
    llm = natives("qwen3_5_text", "none")
    llm.forget()
    with llm.session() as session:
        session.generate(SHORT_PROMPT, **OPTIONS)
        for number in range(CHECKPOINTS):
            llm.generate([number + 1] * 20, **OPTIONS)
        assert inside(llm).engine.target.pool.recurrent.states.used == CHECKPOINTS
        kept = len(session.tokens)
        others = [llm.session() for _ in range(CHECKPOINTS)]
        assert session.generate([*session.tokens, 5], **OPTIONS).reused == kept
        for number, other in enumerate(others):
            other.generate([number + 1] * 20, **OPTIONS)
        assert inside(llm).engine.target.pool.recurrent.states.used == CHECKPOINTS
        assert [bool(each.tokens) for each in (session, *others)] == [False, *[True] * CHECKPOINTS]
        for other in others:
            other.close()
    llm.forget()
    assert nothing_is_left(inside(llm).engine.target)


@pytest.mark.parametrize("name", ["lfm2", "qwen3_5_text"])
def test_recurrent_models_go_back_to_turns_of_a_conversation(tmp_path, name):
    """The first question after the same system prompt, and the last question, are read anew."""
    llm = LLM(make_bundle(tmp_path, architecture=name), threads=1, context=512)
    said = [("system", "You answer in a word or two."), ("user", "What is the capital of Peru?")]
    said += [("assistant", "It is Lima."), ("user", "How many people live there, by the way?")]

    def answer(*messages):
        return llm.chat([{"role": role, "content": text} for role, text in messages], **OPTIONS)

    def alone(*messages):
        llm.forget()
        return answer(*messages).tokens

    edited = (*said[:3], ("user", "And of Chile?"))
    other = (said[0], ("user", "Hello there!"))
    expected = [alone(*edited), alone(*other)]
    llm.forget()
    first = answer(*said)
    assert first.reused == 0
    again = answer(*edited)
    new = answer(*other)
    assert [again.tokens, new.tokens] == expected
    question = len(llm.tokenizer.encode(said[3][1]))
    assert first.prompt_tokens - question - 16 < again.reused < first.prompt_tokens - question
    assert 8 < new.reused < new.prompt_tokens - len(llm.tokenizer.encode(other[1][1]))
    llm.close()


def test_a_cancelled_text_can_be_gone_on_from(natives):
    llm = natives("llama")
    llm.forget()
    with llm.session() as session:
        stream = session.stream(LONG_PROMPT, **OPTIONS)
        pieces = iter(stream)
        for _ in range(3):
            next(pieces)
        stream.close()
        prompt = [*llm.tokenizer.encode(LONG_PROMPT), 4, 5]
        result = session.generate(prompt, **OPTIONS)
        assert result.tokens == alone(natives, prompt)
        assert result.reused >= len(prompt) - 2


def test_a_failed_text_leaves_what_was_known(natives, monkeypatch):
    llm = natives("llama")
    with llm.session() as session:
        session.generate(SHORT_PROMPT, **OPTIONS)
        held = session.tokens
        monkeypatch.setattr(inside(llm).engine.target, "graph", fail)
        with pytest.raises(DeviceError, match="gone"):
            session.generate(LONG_PROMPT, **OPTIONS)
        monkeypatch.undo()
        assert session.tokens == held
        assert session.generate(LONG_PROMPT, **OPTIONS).tokens == alone(natives, LONG_PROMPT)


def fail(_):
    raise DeviceError("the device is gone")


def test_sessions_are_evicted_behind_what_nobody_keeps(pairs):
    """There is room for one text of 512 tokens and twice the largest tree, 766 rows."""
    with loaded(pairs, "llama", "none", context=512) as llm:
        sessions = [llm.session() for _ in range(3)]
        for number, session in enumerate(sessions):
            session.generate([number + 1] * 150, **OPTIONS)
        llm.generate([9] * 150, **OPTIONS)
        llm.generate([8] * 150, **OPTIONS)
        assert all(session.tokens for session in sessions)
        sessions[0].generate([1] * 151, **OPTIONS)
        llm.generate([7] * 400, max_new_tokens=60)
        assert [bool(session.tokens) for session in sessions] == [True, False, False]
        sessions[1].generate([2] * 150, **OPTIONS)
        sessions[2].generate([3] * 150, **OPTIONS)
        llm.generate([7] * 300, max_new_tokens=60)
        assert [bool(session.tokens) for session in sessions] == [False, True, True]
        assert inside(llm).engine.target.pool.used <= 766


def test_a_closed_session_gives_its_memory_back(pairs):
    with loaded(pairs, "llama") as llm:
        session = llm.session()
        stream = session.stream(LONG_PROMPT, **OPTIONS)
        session.generate(SHORT_PROMPT, **OPTIONS)
        session.close()
        session.close()
        for use in (lambda: session.tokens, lambda: session.generate(SHORT_PROMPT)):
            with pytest.raises(InputError, match="the session is closed"):
                use()
        assert stream.finish().new_tokens == OPTIONS["max_new_tokens"]
        llm.forget()


# Files


@pytest.mark.parametrize(
    "name",
    ["llama", "half", "small-caches", "head", "gpt_oss", "lfm2-draft", "qwen3_5_text-draft",
     "granitemoehybrid-draft"],
)  # fmt: skip
def test_a_saved_session_goes_on_elsewhere(natives, pairs, tmp_path, name):
    llm = natives(name)
    file = tmp_path / "session"
    with llm.session() as session:
        session.generate(LONG_PROMPT, **OPTIONS)
        held = session.tokens
        session.save(file)
    for draft in ("none", "auto"):  # whatever drafts there
        with loaded(pairs, name, draft) as other, other.load_session(file) as session:
            assert session.tokens == held
            result = session.generate([*held, 4, 5], **OPTIONS)
            again = 16 if (name, draft) == ("head", "auto") else 0  # for their features
            assert result.reused == len(held) - again
            assert result.tokens == alone(natives, [*held, 4, 5], name)


def test_a_longer_session_is_cut_to_the_context(natives, pairs, tmp_path):
    llm = natives("llama")
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    with llm.session() as session:
        session.generate(prompt * 2, max_new_tokens=2)
        session.save(tmp_path / "session")
    with loaded(pairs, "llama", context=128) as other:
        session = other.load_session(tmp_path / "session")
        assert len(session.tokens) == 128
        result = session.generate(prompt[:80], max_new_tokens=20)
        assert result.reused == 79
        assert result.tokens == alone(natives, prompt[:80], max_new_tokens=20)


@pytest.mark.parametrize("name", ["llama", "qwen3_5_text"])
def test_what_was_evicted_is_not_saved(pairs, tmp_path, name):
    file = tmp_path / "session"
    with loaded(pairs, name, "none", context=300) as llm:
        session = llm.session()
        session.save(file)
        assert llm.load_session(file).tokens == ()
        session.generate([3] * 290, **OPTIONS)
        session.save(file)
        before = file.read_bytes()
        llm.generate([5] * 290, **OPTIONS)
        with pytest.raises(InputError, match="dropped for other texts"):
            session.save(file)
        assert file.read_bytes() == before


def test_files_that_are_no_session_of_the_bundle_are_refused(natives, tmp_path):
    llm = natives("llama", "model")
    file = tmp_path / "session"
    bad = tmp_path / "bad"
    llm.forget()
    with llm.session() as session:
        session.generate(SHORT_PROMPT, **OPTIONS)
        session.save(file)
    with pytest.raises(InputError, match="start a new session"):
        natives("half").load_session(file)
    with pytest.raises(InputError, match="cannot be read"):
        llm.load_session(tmp_path / "missing")
    bad.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match="cannot be read"):
        llm.load_session(bad)
    tensors = load_file(file)
    metadata = {"kind": "edgespec session", "version": "4"}
    weights = torch.ones(2, dtype=torch.float8_e4m3fn)  # a checkpoint's, which numpy cannot read
    torch_save({"weight": weights}, bad)
    with pytest.raises(InputError, match="not a session file of version 4"):
        llm.load_session(bad)
    save_file(tensors, bad, {**metadata, "version": "1"})
    with pytest.raises(InputError, match="not a session file of version 4"):
        llm.load_session(bad)
    metadata["bundle"] = llm.bundle.digest
    pool = next(name for name in tensors if name.startswith("target.pool"))
    drafts = next(name for name in tensors if name.startswith("draft.pool"))
    llm.forget()
    for name, array in (
        (pool, tensors[pool][:, :, 1:]),
        (pool, tensors[pool][:1]),
        (drafts, tensors[drafts].astype(np.float64)),
        ("target.tokens", tensors["target.tokens"].astype(np.int32)),
        ("target.tokens", np.array(5)),
        ("target.tokens", tensors["target.tokens"][:, None]),
        ("draft.tokens", tensors["draft.tokens"][1:]),
    ):
        save(bad, llm.bundle.digest, {**tensors, name: np.array(array, order="C")})
        with pytest.raises(InputError, match=r"is damaged \(the cache of its (target|draft)\)"):
            llm.load_session(bad)
    assert not any(model.pool.used for model in inside(llm).models.values())
    save_file(tensors, bad, metadata)
    with pytest.raises(InputError, match="its content is not what was saved"):
        llm.load_session(bad)
    save(bad, llm.bundle.digest, tensors)
    assert llm.load_session(bad).tokens


def test_a_state_is_cut_to_no_context_and_damaged_ones_are_refused(natives, pairs, tmp_path):
    llm = natives("qwen3_5_text", "none")
    file = tmp_path / "session"
    bad = tmp_path / "bad"
    with llm.session() as session:
        session.generate(LONG_PROMPT, **OPTIONS)
        session.save(file)
    with loaded(pairs, "qwen3_5_text", context=128) as other:
        assert other.load_session(file).tokens == ()
    llm.forget()
    tensors = load_file(file)
    place = tensors["target.recurrence"]
    for name, array in (
        ("recurrence", place[:1]),
        ("recurrence", place + 100),
        ("recurrence", place - [0, 1]),
        ("recurrence", place * 0 - 1),
        ("recurrence", place.astype(np.int32)),
        *[(name, tensors[f"target.{name}"][1:]) for name in ("rows.0", "states.0")],
    ):
        save(bad, llm.bundle.digest, {**tensors, f"target.{name}": np.array(array, order="C")})
        with pytest.raises(InputError, match="is damaged"):
            llm.load_session(bad)
    del tensors["target.recurrence"]
    save(bad, llm.bundle.digest, tensors)
    with pytest.raises(InputError, match="is damaged"):
        llm.load_session(bad)
    assert nothing_is_left(inside(llm).engine.target)


def test_no_damaged_session_file_does_harm(natives, tmp_path):
    llm = natives("llama", "none")
    file = tmp_path / "session"
    chance = random.Random(49)
    llm.forget()
    with llm.session() as session:
        session.generate(SHORT_PROMPT, **OPTIONS)
        session.save(file)
    intact = file.read_bytes()
    for number in range(120 * TIMES):
        content = bytearray(intact)
        place = chance.randrange(2000 if number % 2 else len(content))
        if number % 3:
            content[place] ^= 1 << chance.randrange(8)
        else:
            del content[place:]
        file.write_bytes(content)
        with pytest.raises(InputError) as caught:
            llm.load_session(file)
        assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_cannot_be_written_leaves_the_old_one(natives, tmp_path, monkeypatch):
    folder = tmp_path / "sessions"
    folder.mkdir()
    file = folder / "session"
    with natives("llama", "none").session() as session:
        session.generate(SHORT_PROMPT, **OPTIONS)
        session.save(file)
        assert file.stat().st_mode & 0o777 == 0o600
        file.chmod(0o640)
        session.save(file)
        assert file.stat().st_mode & 0o777 == 0o640
        before = file.read_bytes()
        full = "No space left on device"
        for error in (OSError(28, full), SafetensorError(full)):  # as Python and safetensors say it
            monkeypatch.setattr("edgespec.llm.session_files.save_file", failing(error))
            with pytest.raises(InputError, match=f"cannot be written .*{full}"):
                session.save(file)
            assert file.read_bytes() == before
            assert list(folder.iterdir()) == [file]
        monkeypatch.undo()
        for wrong in (folder / "no folder" / "session", folder):
            with pytest.raises(InputError, match="cannot be written"):
                session.save(wrong)
        linked(folder / "a", folder / "b")
        linked(folder / "b", folder / "a")
        with pytest.raises(InputError, match="not a regular file"):
            session.save(folder / "a")
        monkeypatch.setattr(os, "access", lambda *_: False)  # which is never said to root
        with pytest.raises(InputError, match="write-protected"):
            session.save(file)
        assert file.read_bytes() == before


def failing(error):
    def fail(*_):
        raise error

    return fail


@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_texts_share_with_those_of_their_key_alone(natives, name):
    llm = natives(name)
    llm.forget()
    reused = []
    for key in ("one", "", "two", "one", ""):
        request = GenerationRequest(LONG_PROMPT, GenerationOptions(max_new_tokens=2), key)
        reused.append(llm.submit(request).finish().reused > 0)
    assert reused == [False, False, False, True, True]
