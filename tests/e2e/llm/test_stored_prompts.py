"""Prompts on disk: texts are the same as without, whatever is in the folder."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from native_llms import loaded, with_library
from safetensors.numpy import load_file
from sessions import OPTIONS

from edgespec.errors import InputError
from edgespec.llm import stored_prompts
from edgespec.llm.llm import inside
from edgespec.llm.prompt_files import PromptFiles

pytestmark = with_library

BLOCK = 64  # small, as the contexts here are
TEXT = np.random.default_rng(0).integers(1, 300, 400).tolist()
LENGTH = 390
BLOCKS = LENGTH // BLOCK  # 6


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(stored_prompts, "BLOCK", BLOCK)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "prompts"


@pytest.fixture
def plain(natives):
    """The text without any cache, with the log-probabilities that show its logits' bits."""

    def make(prompt, name="llama"):
        llm = natives(name, "none")
        llm.forget()
        return llm.generate(prompt, logprobs=3, **OPTIONS)

    return make


def cached(pairs, folder, prompt, name="llama", draft="none", **options):
    """The text in a newly loaded model."""
    with loaded(pairs, name, draft, prompt_cache=folder, **options) as llm:
        return llm.generate(prompt, logprobs=3, **OPTIONS)


def same(found, expected):
    """Whether two texts are alike to the last bit."""
    return (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)


def files(folder):
    return sorted(folder.glob("*.prompt.safetensors"))


def in_order(folder):
    """The files of one text, the first block first."""
    return sorted(files(folder), key=lambda file: -file.stat().st_mtime_ns)


@pytest.mark.parametrize("name", ["llama", "half", "small-caches"])
def test_a_prompt_that_was_seen_gives_the_same_bits(pairs, folder, plain, name):
    prompt = TEXT[:LENGTH]
    for number, draft in enumerate(["none", "auto"]):
        found = cached(pairs, folder, prompt, name, draft)
        assert found.reused == number * BLOCKS * BLOCK
        assert same(found, plain(prompt, name))
    shared = TEXT[: 3 * BLOCK + 10] + TEXT[50:200]
    found = cached(pairs, folder, shared, name)
    assert found.reused == 3 * BLOCK
    assert same(found, plain(shared, name))


def test_answers_are_stored_for_the_next_turn(pairs, folder, plain):
    """The rows of an answer are those of verifications, among drafts."""
    prompt = TEXT[: 2 * BLOCK - 20]  # which the answer carries across the end of a block
    first = cached(pairs, folder, prompt, draft="auto")
    longer = [*prompt, *first.tokens, 7, 8, 9]
    found = cached(pairs, folder, longer)
    assert found.reused == 2 * BLOCK
    assert same(found, plain(longer))


def test_a_token_is_left_to_run(pairs, folder, plain):
    for length, reused in ((BLOCK, 0), (BLOCK, 0), (BLOCK + 1, BLOCK), (BLOCK - 1, 0)):
        found = cached(pairs, folder, TEXT[:length])
        assert found.reused == reused
        assert same(found, plain(TEXT[:length]))


def test_what_is_in_memory_is_not_read_again(pairs, folder, plain, monkeypatch):
    prompt = TEXT[:LENGTH]
    longer = TEXT[:100] + TEXT[: LENGTH - 100]
    cached(pairs, folder, longer)
    reads = []
    read = PromptFiles.read
    monkeypatch.setattr(PromptFiles, "read", lambda *a: [reads.append(1), read(*a)][1])
    with loaded(pairs, "llama", "none", prompt_cache=folder) as llm:
        for reused in (BLOCK, LENGTH - 1):  # the first block is known from the other text
            assert llm.generate(prompt, **OPTIONS).reused == reused
        assert len(reads) == 1
        found = llm.generate(longer, logprobs=3, **OPTIONS)  # from the middle of a block on
        assert (found.reused, len(reads)) == (BLOCKS * BLOCK, BLOCKS)
        assert same(found, plain(longer))


def test_a_loaded_session_is_stored_as_it_goes_on(pairs, folder, tmp_path):
    prompt = TEXT[:LENGTH]
    with loaded(pairs, "llama", "none") as llm, llm.session() as session:
        session.generate(prompt, **OPTIONS)
        session.save(tmp_path / "session")
    with (
        loaded(pairs, "llama", "none", prompt_cache=folder) as llm,
        llm.load_session(tmp_path / "session") as session,
    ):
        session.generate([*session.tokens, 5], **OPTIONS)
    assert cached(pairs, folder, prompt).reused == BLOCKS * BLOCK


# Files that are not what was written

DAMAGE = {
    "a bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "cut": lambda data: data[:-100],
    "empty": lambda _: b"",
    "no header": lambda _: b"\xff" * 1000,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_block_is_computed_and_written_again(pairs, folder, plain, caplog, damage):
    prompt = TEXT[:LENGTH]
    cached(pairs, folder, prompt)
    broken = in_order(folder)[2]
    whole = load_file(broken)
    broken.write_bytes(DAMAGE[damage](broken.read_bytes()))
    found = cached(pairs, folder, prompt)
    assert found.reused == 2 * BLOCK
    assert same(found, plain(prompt))
    assert caplog.text.count("is damaged") == 1
    np.testing.assert_equal(load_file(broken), whole)
    assert cached(pairs, folder, prompt).reused == BLOCKS * BLOCK


def test_a_block_under_another_name_is_not_used(pairs, folder, plain):
    prompt = TEXT[:LENGTH]
    cached(pairs, folder, prompt)
    first, second = in_order(folder)[:2]
    second.write_bytes(first.read_bytes())
    found = cached(pairs, folder, prompt)
    assert found.reused == BLOCK
    assert same(found, plain(prompt))


def test_arrays_that_do_not_fit_the_model_are_not_used(pairs, folder, plain):
    """As from a program that follows all rules but one."""
    prompt = TEXT[:LENGTH]
    cached(pairs, folder, prompt)
    key = in_order(folder)[0].name.partition(".")[0]
    for arrays in (
        {"x": np.zeros(1, np.float32)},
        {"pool.0": np.zeros((1, 2, 3, BLOCK, 4), np.float32)},
        {"pool.0": np.zeros(3, np.float32)},
    ):
        PromptFiles(folder, 1 << 40).write([key], arrays)
        with loaded(pairs, "llama", "none", prompt_cache=folder) as llm:
            found = llm.generate(prompt, logprobs=3, **OPTIONS)
            assert found.reused == 0
            assert same(found, plain(prompt))
            llm.forget()
            assert not inside(llm).engine.target.pool.used


def test_other_bundles_have_blocks_of_their_own(pairs, folder, plain):
    prompt = TEXT[:LENGTH]
    cached(pairs, folder, prompt)
    found = cached(pairs, folder, prompt, "twin")
    assert found.reused == 0
    assert same(found, plain(prompt, "twin"))
    assert cached(pairs, folder, prompt).reused == BLOCKS * BLOCK


# Space, and what goes wrong with it


def test_a_text_larger_than_the_budget_is_stored_as_far_as_it_fits(pairs, folder, caplog):
    prompt = TEXT[:LENGTH]
    cached(pairs, folder, prompt)
    size = files(folder)[0].stat().st_size
    for file in files(folder):
        file.unlink()
    for reused in (0, 2 * BLOCK, 2 * BLOCK):
        found = cached(pairs, folder, prompt, prompt_cache_size=5 * size // 2)
        assert found.reused == reused
    assert len(files(folder)) == 2
    assert not caplog.text


def test_a_budget_below_one_block_is_told_once(pairs, folder, caplog):
    with loaded(pairs, "llama", "none", prompt_cache=folder, prompt_cache_size="1KiB") as llm:
        for _ in range(2):
            llm.forget()
            assert llm.generate(TEXT[:LENGTH], **OPTIONS).reused == 0
    assert caplog.text.count("prompts are not stored") == 1
    assert not files(folder)


def test_a_disk_that_cannot_be_written_is_told_once(pairs, folder, plain, caplog, monkeypatch):
    prompt = TEXT[:LENGTH]
    other = TEXT[5:LENGTH]
    cached(pairs, folder, prompt)
    kept = files(folder)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgespec.llm.prompt_files.tempfile.mkstemp", full)
    with loaded(pairs, "llama", "none", prompt_cache=folder) as llm:
        for _ in range(2):
            assert same(llm.generate(other, logprobs=3, **OPTIONS), plain(other))
            llm.forget()
        assert llm.generate(prompt, **OPTIONS).reused == BLOCKS * BLOCK  # which needs no space
    assert caplog.text.count("No space left on device") == 1
    assert files(folder) == kept


def test_a_slow_disk_makes_no_text_wait(pairs, folder, plain, monkeypatch):
    prompt = TEXT[:LENGTH]
    go = threading.Event()
    write = PromptFiles.write

    def slow(*arguments):
        assert go.wait(60)
        return write(*arguments)

    monkeypatch.setattr(PromptFiles, "write", slow)
    monkeypatch.setattr(stored_prompts, "_MOST_WAITING", 0)
    with loaded(pairs, "llama", "none", prompt_cache=folder) as llm:
        assert same(llm.generate(prompt, logprobs=3, **OPTIONS), plain(prompt))
        assert not files(folder)
        go.set()
    monkeypatch.undo()
    monkeypatch.setattr(stored_prompts, "BLOCK", BLOCK)
    for reused in (BLOCK, BLOCKS * BLOCK):  # the next text stores the rest
        assert cached(pairs, folder, prompt).reused == reused


KILLED = f"""
import os, sys
from pathlib import Path
from edgespec import LLM
from edgespec.llm import stored_prompts

stored_prompts.BLOCK = {BLOCK}
replace, written = Path.replace, []

def killed(self, target):
    if str(target).endswith(".prompt.safetensors"):
        written.append(target)
        if len(written) == 3:
            os._exit(9)
    return replace(self, target)

Path.replace = killed
path, folder, *tokens = sys.argv[1:]
with LLM(path, threads=1, draft="none", prompt_cache=folder, context=512) as llm:
    llm.generate([int(token) for token in tokens], max_new_tokens=4)
"""


def test_a_process_that_is_killed_leaves_whole_blocks_only(pairs, folder, tmp_path, plain):
    prompt = TEXT[:LENGTH]
    path = pairs.pair("llama").path
    command = [sys.executable, "-c", KILLED, path, folder, *prompt]
    run = subprocess.run([str(word) for word in command], cwd=tmp_path, check=False)
    assert run.returncode == 9
    [rest] = folder.glob("*.partial")
    assert len(files(folder)) == 2
    os.utime(rest, (1, 1))  # as after some time
    size = sum(file.stat().st_size for file in folder.iterdir())
    found = cached(pairs, folder, prompt, prompt_cache_size=2 * size)
    assert found.reused == 2 * BLOCK
    assert same(found, plain(prompt))
    assert not rest.exists()  # it was the oldest


def test_closing_waits_for_the_disk(pairs, folder):
    llm = loaded(pairs, "llama", "none", prompt_cache=folder)
    stream = llm.stream(TEXT[:LENGTH], **OPTIONS)
    next(iter(stream))
    llm.close()
    stored = files(folder)
    assert len(stored) >= BLOCKS - 3  # a block for each pass
    assert stream.finish().finish_reason == "cancelled"
    assert files(folder) == stored
    assert not list(folder.glob("*.partial"))


def test_states_of_recurrent_layers_are_not_stored(pairs, folder):
    with pytest.raises(InputError, match="leave out prompt_cache"):
        loaded(pairs, "lfm2", prompt_cache=folder)
    assert not folder.exists()


def test_a_folder_that_cannot_be_used_is_refused(pairs, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"prompt_cache .* cannot be used"):
        loaded(pairs, "llama", prompt_cache=tmp_path / "file")
