"""Texts with a prompt cache on disk: the same as without, in new processes, whatever is in it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from checkpoints import RECURRENT
from pairs import ENGINES, LONG_PROMPT
from safetensors.numpy import load_file
from sessions import OPTIONS, load

from edgespec import LLM
from edgespec.api import prompt_blocks, prompt_cache
from edgespec.api.prompt_files import PromptFiles
from edgespec.bundle.sublayers import CHUNK
from edgespec.errors import InputError
from edgespec.runtime.deployment.options import LoadOptions

BLOCK = 2 * CHUNK  # small, as the contexts here are
TEXT = np.random.default_rng(0).integers(1, 300, 400).tolist()
LENGTH = 390
BLOCKS = LENGTH // BLOCK  # 6
WINDOWS = ("gemma2", "gpt_oss")

kinds = pytest.mark.parametrize("name", ["llama", "half", "cut", "head", *WINDOWS, *RECURRENT])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for module in (prompt_blocks, prompt_cache):
        monkeypatch.setattr(module, "BLOCK", BLOCK)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "prompts"


def plain(pairs, prompt, name="llama", engine=ENGINES[0]):
    """The text without any cache, with the log-probabilities that show its logits' bits."""
    return pairs.llm(name, engine, "none").generate(prompt, logprobs=3, **OPTIONS)


def cached(pairs, folder, prompt, name="llama", draft="none", **options):
    """The text in a newly loaded model."""
    with load(pairs, draft, name, prompt_cache=folder, **options) as llm:
        return llm.generate(prompt, logprobs=3, **OPTIONS)


def same(found, expected):
    """Whether two texts are alike to the last bit."""
    assert found.exact
    return (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)


def files(folder):
    return sorted(folder.glob("*.prompt.safetensors"))


def in_order(folder):
    """The files of one text, the first block first."""
    return sorted(folder.glob("*.prompt.safetensors"), key=lambda file: -file.stat().st_mtime_ns)


# Texts


@kinds
def test_a_prompt_that_was_seen_gives_the_same_bits(pairs, folder, name):
    prompt = TEXT[:LENGTH]
    expected = plain(pairs, prompt, name)
    with_draft = {"head": "head", **dict.fromkeys(RECURRENT, "lookup")}.get(name, "model")
    for number, draft in enumerate(["none", with_draft]):
        found = cached(pairs, folder, prompt, name, draft)
        assert found.reused == number * BLOCKS * BLOCK
        assert same(found, expected)


@pytest.mark.parametrize("name", ["llama", "gemma2", RECURRENT[0]])
def test_another_engine_computes_its_own_rows(pairs, folder, name):
    prompt = TEXT[:LENGTH]
    expected = plain(pairs, prompt, name, ENGINES[1])
    for engine, reused in ((ENGINES[0], 0), (ENGINES[1], 0), (ENGINES[1], BLOCKS * BLOCK)):
        found = cached(pairs, folder, prompt, name, device=engine, draft_device=engine)
        assert found.reused == reused
        assert engine != ENGINES[1] or same(found, expected)


@kinds
def test_a_prompt_that_shares_half_of_its_blocks_reuses_them(pairs, folder, name):
    cached(pairs, folder, TEXT[:LENGTH], name)
    shared = 3 * BLOCK + 10
    prompt = TEXT[:shared] + TEXT[50:200]
    for reused in (3 * BLOCK, (len(prompt) - 1) // BLOCK * BLOCK):
        found = cached(pairs, folder, prompt, name)
        assert found.reused == reused
        assert same(found, plain(pairs, prompt, name))
    assert len(files(folder)) == 6 + 3  # with its answer


@kinds
def test_answers_are_stored_for_the_next_turn(pairs, folder, name):
    """The rows of an answer are those of verifications, among drafts."""
    prompt = TEXT[: 2 * BLOCK - 20]  # which the answer carries across the end of a block
    first = cached(pairs, folder, prompt, name, "lookup")
    longer = [*prompt, *first.tokens, 7, 8, 9]
    found = cached(pairs, folder, longer, name)
    assert found.reused == 2 * BLOCK
    assert same(found, plain(pairs, longer, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "head", *WINDOWS, *RECURRENT])
def test_turns_in_sessions_and_restarts_are_those_of_their_prompts_alone(pairs, folder, name):
    prompt, reused = TEXT[:90], 0
    for number in range(8):
        if number % 3 == 0:  # a restart
            llm = load(pairs, "lookup", name, prompt_cache=folder, sessions=2)
            session = llm.session()
        result = session.generate(prompt, logprobs=3, **OPTIONS)
        assert same(result, plain(pairs, prompt, name))
        if number % 3 == 0:
            assert result.reused == reused // BLOCK * BLOCK
        reused = len(prompt) + len(result.tokens) - 1  # the last one was never run
        prompt = [*prompt, *result.tokens, *TEXT[number : 3 * number]]
        if number == 4:  # the user edits what was said
            prompt = [*prompt[:200], *TEXT[9:30]]
            reused = 200
        if number % 3 == 2:
            llm.close()


def test_the_longest_prompts_that_blocks_cover_keep_a_token_to_run(pairs, folder):
    for length, reused in ((BLOCK, 0), (BLOCK, 0), (BLOCK + 1, BLOCK), (BLOCK - 1, 0)):
        found = cached(pairs, folder, TEXT[:length])
        assert found.reused == reused
        assert same(found, plain(pairs, TEXT[:length]))


def test_what_is_in_memory_is_not_read_again(pairs, folder, monkeypatch):
    prompt = TEXT[:LENGTH]
    read = []
    monkeypatch.setattr(PromptFiles, "read", lambda *_: read.append(1))
    with load(pairs, "none", prompt_cache=folder, prefix_reuse=True, sessions=3) as llm:
        llm.generate(prompt, **OPTIONS)
        llm._texts.shared.prompts._writer.submit(int).result()  # all is written
        assert llm.generate(prompt, **OPTIONS).reused == LENGTH - 1
        with llm.session() as session:
            assert session.generate(prompt, **OPTIONS).reused == LENGTH - 1
    assert not read


def test_a_loaded_session_is_stored_as_it_goes_on(pairs, folder, tmp_path):
    prompt = TEXT[:LENGTH]
    with load(pairs, "none") as llm, llm.session() as session:
        session.generate(prompt, **OPTIONS)
        session.save(tmp_path / "session")
    with (
        load(pairs, "none", prompt_cache=folder) as llm,
        llm.load_session(tmp_path / "session") as session,
    ):
        session.generate([*session.tokens, 5], **OPTIONS)
    assert cached(pairs, folder, prompt).reused == BLOCKS * BLOCK


def test_a_stopped_text_keeps_what_it_has_read(pairs, folder):
    with load(pairs, "none", prompt_cache=folder) as llm:
        stream = llm.stream(TEXT[:LENGTH], **OPTIONS)
        next(iter(stream))
        stream.close()
    assert cached(pairs, folder, TEXT[:LENGTH]).reused >= (BLOCKS - 1) * BLOCK


# Files that are not what was written


def flipped(data):
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


DAMAGE = {
    "a bit": flipped,
    "cut": lambda data: data[:-100],
    "empty": lambda _: b"",
    "no header": lambda _: b"\xff" * 1000,
}


@pytest.mark.parametrize("name", ["llama", "gemma2", RECURRENT[1]])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_block_is_computed_and_written_again(pairs, folder, caplog, name, damage):
    prompt = TEXT[:LENGTH]
    expected = plain(pairs, prompt, name)
    cached(pairs, folder, prompt, name)
    broken = in_order(folder)[BLOCKS - 1]
    whole = load_file(broken)
    broken.write_bytes(DAMAGE[damage](broken.read_bytes()))
    found = cached(pairs, folder, prompt, name)
    assert found.reused == (BLOCKS - 1) * BLOCK
    assert same(found, expected)
    assert caplog.text.count("is damaged") == 1
    np.testing.assert_equal(load_file(broken), whole)
    assert cached(pairs, folder, prompt, name).reused == BLOCKS * BLOCK


def test_a_block_under_another_name_is_not_used(pairs, folder):
    prompt = TEXT[:LENGTH]
    cached(pairs, folder, prompt)
    first, second = in_order(folder)[:2]
    second.write_bytes(first.read_bytes())
    found = cached(pairs, folder, prompt)
    assert found.reused == BLOCK
    assert same(found, plain(pairs, prompt))


def test_arrays_that_do_not_fit_the_model_are_not_used(pairs, folder):
    """As from a program that follows all rules but one."""
    prompt = TEXT[:LENGTH]
    with load(pairs, "none", prompt_cache=folder) as llm:
        llm.generate(prompt, **OPTIONS)
        llm._texts.shared.prompts._writer.submit(int).result()
        keys = list(llm._texts.shared.prompts._keys(prompt[: BLOCKS * BLOCK]))
        for arrays in ({}, {"target.0": np.zeros((1, 2, 3, BLOCK, 4), np.float32)}):
            llm._texts.shared.prompts._files.write(keys[:1], arrays)
            found = llm.generate(prompt, logprobs=3, **OPTIONS)
            assert found.reused == 0
            assert same(found, plain(pairs, prompt))


def test_a_block_that_vanishes_while_it_is_looked_for_is_computed(pairs, folder, caplog):
    prompt = TEXT[:LENGTH]
    cached(pairs, folder, prompt)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PromptFiles, "has", lambda *_: True)  # another process removes it now
        in_order(folder)[2].unlink()
        found = cached(pairs, folder, prompt)
    assert found.reused == 2 * BLOCK
    assert same(found, plain(pairs, prompt))
    assert "damaged" not in caplog.text


def test_other_bundles_have_blocks_of_their_own(pairs, folder):
    prompt = TEXT[:LENGTH]
    cached(pairs, folder, prompt)
    found = cached(pairs, folder, prompt, "twin")
    assert found.reused == 0
    assert same(found, plain(pairs, prompt, "twin"))
    assert cached(pairs, folder, prompt).reused == BLOCKS * BLOCK


# Space, and what goes wrong with it


def test_the_least_recently_used_text_gives_way(pairs, folder):
    texts = [[number, *TEXT[:LENGTH]] for number in (1, 2, 3)]
    cached(pairs, folder, texts[0])
    size = sum(file.stat().st_size for file in files(folder))
    room = {"prompt_cache_size": 5 * size // 2}
    cached(pairs, folder, texts[1], **room)
    assert cached(pairs, folder, texts[0], **room).reused  # and so the second is older now
    cached(pairs, folder, texts[2], **room)
    assert sum(file.stat().st_size for file in files(folder)) <= room["prompt_cache_size"]
    whole = BLOCKS * BLOCK
    found = [cached(pairs, folder, text, **room).reused for text in (texts[2], texts[0])]
    assert found == [whole, whole]
    found = cached(pairs, folder, texts[1], **room)
    assert found.reused == 3 * BLOCK  # its first blocks are what is left of it
    assert same(found, plain(pairs, texts[1]))


def test_a_text_larger_than_the_budget_is_stored_as_far_as_it_fits(pairs, folder, caplog):
    prompt = TEXT[:LENGTH]
    cached(pairs, folder, prompt)
    size = files(folder)[0].stat().st_size
    for file in files(folder):
        file.unlink()
    for reused in (0, 2 * BLOCK, 2 * BLOCK):
        found = cached(pairs, folder, prompt, prompt_cache_size=5 * size // 2)
        assert found.reused == reused
        assert same(found, plain(pairs, prompt))
    assert len(files(folder)) == 2
    assert not caplog.text


def test_a_budget_below_one_block_is_told_once(pairs, folder, caplog):
    with load(pairs, "none", prompt_cache=folder, prompt_cache_size="1KiB") as llm:
        for _ in range(2):
            assert llm.generate(TEXT[:LENGTH], **OPTIONS).reused == 0
    assert caplog.text.count("prompts are not stored") == 1
    assert f"{BLOCK} tokens take 0.0 MiB" in caplog.text
    assert not files(folder)


def test_a_disk_that_cannot_be_written_is_told_once(pairs, folder, caplog, monkeypatch):
    prompt, other = TEXT[:LENGTH], TEXT[5:LENGTH]
    cached(pairs, folder, prompt)
    kept = files(folder)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgespec.api.prompt_files.tempfile.mkstemp", full)
    with load(pairs, "none", prompt_cache=folder) as llm:
        for _ in range(2):
            found = llm.generate(other, logprobs=3, **OPTIONS)
            assert same(found, plain(pairs, other))
        assert llm.generate(prompt, **OPTIONS).reused == BLOCKS * BLOCK  # which needs no space
    assert caplog.text.count("No space left on device") == 1
    assert files(folder) == kept


def test_a_slow_disk_makes_no_text_wait(pairs, folder, monkeypatch):
    prompt, go = TEXT[:LENGTH], threading.Event()
    write = PromptFiles.write

    def slow(*arguments):
        assert go.wait(60)
        return write(*arguments)

    monkeypatch.setattr(PromptFiles, "write", slow)
    monkeypatch.setattr(prompt_cache, "_MOST_WAITING", 0)
    with load(pairs, "none", prompt_cache=folder) as llm:
        found = llm.generate(prompt, logprobs=3, **OPTIONS)
        assert same(found, plain(pairs, prompt))
        assert not files(folder)
        go.set()
    monkeypatch.undo()
    monkeypatch.setattr(prompt_blocks, "BLOCK", BLOCK)
    monkeypatch.setattr(prompt_cache, "BLOCK", BLOCK)
    for reused in (BLOCK, BLOCKS * BLOCK):  # the next text stores the rest
        assert cached(pairs, folder, prompt).reused == reused


def test_texts_at_once_share_a_folder(pairs, folder):
    """Two models write the same blocks, while a third party deletes some."""
    prompts = [TEXT[:LENGTH], TEXT[:200] + TEXT[:150]]
    wrong = []

    def work(number):
        for _ in range(4):
            for prompt in prompts if number else prompts[::-1]:
                if not same(cached(pairs, folder, prompt), plain(pairs, prompt)):
                    wrong.append(prompt)
                for file in files(folder)[::3]:
                    file.unlink(missing_ok=True)

    [plain(pairs, prompt) for prompt in prompts]  # made before threads ask for it
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for prompt in prompts:
        cached(pairs, folder, prompt)
        found = cached(pairs, folder, prompt)
        assert found.reused == (len(prompt) - 1) // BLOCK * BLOCK
        assert same(found, plain(pairs, prompt))


KILLED = f"""
import os, sys
from pathlib import Path
from edgespec import LLM
from edgespec.api import prompt_blocks, prompt_cache

prompt_blocks.BLOCK = prompt_cache.BLOCK = {BLOCK}
replace, written = Path.replace, []

def killed(self, target):
    if str(target).endswith(".prompt.safetensors"):
        written.append(target)
        if len(written) == 3:
            os._exit(9)
    return replace(self, target)

Path.replace = killed
bundle, device, folder, *tokens = sys.argv[1:]
with LLM(bundle, device=device, threads=1, draft="none", prompt_cache=folder) as llm:
    llm.generate([int(token) for token in tokens], max_new_tokens=4)
"""


def test_a_process_that_is_killed_leaves_whole_blocks_only(pairs, folder, tmp_path):
    prompt, path = TEXT[:LENGTH], pairs.pair("llama").path
    expected = plain(pairs, prompt)
    command = [sys.executable, "-c", KILLED, path, ENGINES[0], folder, *prompt]
    run = subprocess.run([str(word) for word in command], cwd=tmp_path, check=False)
    assert run.returncode == 9
    [rest] = folder.glob("*.partial")
    assert len(files(folder)) == 2
    os.utime(rest, (1, 1))  # as after some time
    size = sum(file.stat().st_size for file in folder.iterdir())
    found = cached(pairs, folder, prompt, prompt_cache_size=2 * size)
    assert found.reused == 2 * BLOCK
    assert same(found, expected)
    assert not rest.exists()  # it was the oldest
    assert len(files(folder)) == BLOCKS


def test_a_folder_that_was_deleted_is_made_again(pairs, folder):
    with load(pairs, "none", prompt_cache=folder) as llm:
        folder.rmdir()
        llm.generate(TEXT[:LENGTH], **OPTIONS)
    assert len(files(folder)) == BLOCKS


def test_closing_waits_for_the_disk_and_ends_storing(pairs, folder):
    llm = load(pairs, "none", prompt_cache=folder)
    stream = llm.stream(TEXT[:LENGTH], **OPTIONS)
    next(iter(stream))
    llm.close()
    stored = files(folder)
    assert len(stored) >= BLOCKS - 1
    assert stream.finish().finish_reason == "cancelled"
    assert files(folder) == stored
    assert not list(folder.glob("*.partial"))


# Options


def test_options_are_checked(pairs, folder, tmp_path):
    assert LoadOptions(prompt_cache_size="3MiB").prompt_cache_size == 3 << 20
    assert replace(LoadOptions(), prompt_cache="x").prompt_cache_size == 2 << 30
    for wrong, said in (
        ({"prompt_cache": 5}, "prompt_cache is 5: give a folder's name"),
        ({"prompt_cache_size": 0}, "prompt_cache_size is 0: give a whole number of at least 1"),
        ({"prompt_cache_size": "much"}, "size 'much' is not valid"),
    ):
        with pytest.raises(InputError, match=said):
            LoadOptions(**wrong)
    (tmp_path / "file").write_text("x")
    for name in ("file", "file/below"):
        with pytest.raises(
            InputError, match=r"prompt_cache .* cannot be used \(.*\): name a folder"
        ):
            LLM(pairs.pair("llama").path, prompt_cache=tmp_path / name)


def test_only_its_user_can_read_it(pairs, folder):
    cached(pairs, folder, LONG_PROMPT)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert files(folder)
    assert {file.stat().st_mode & 0o777 for file in files(folder)} == {0o600}
