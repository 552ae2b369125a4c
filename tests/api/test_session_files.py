"""Sessions in files: texts go on from them, and files that are damaged or others' are refused."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from links import linked
from pairs import ENGINES, LONG_PROMPT, SHORT_PROMPT
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as torch_save
from sessions import DRAFTS, OPTIONS, fresh, load

from edgespec.errors import InputError
from edgespec.runtime.execution.model import Model


@pytest.mark.parametrize(("draft", "engine"), [("none", ENGINES[1]), ("model", ENGINES[0])])
def test_a_saved_session_goes_on_elsewhere(pairs, tmp_path, draft, engine):
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
            assert result.tokens == fresh(pairs, [*held, 4, 5]).tokens


@pytest.mark.parametrize("draft", ["none", "model"])
def test_a_longer_session_is_cut_to_what_was_planned(pairs, tmp_path, draft):
    prompt = load(pairs, draft).tokenizer.encode(LONG_PROMPT)
    with load(pairs, draft).session() as session:
        session.generate(prompt * 2, max_new_tokens=2)
        session.save(tmp_path / "session")
    llm = load(pairs, draft, context=128, sessions=2)
    other = llm.session()
    other.generate(prompt[:9], max_new_tokens=2)
    session = llm.load_session(tmp_path / "session")
    assert other.tokens  # there is room for both
    assert len(session.tokens) == 128
    assert 2 * session._slot.bytes <= sum(demand.kv for demand in llm.deployment.devices)
    result = session.generate(prompt[:80], max_new_tokens=20)
    assert result.reused == 79
    assert result.tokens == fresh(pairs, prompt[:80], max_new_tokens=20).tokens


def test_an_empty_session_can_be_saved(pairs, tmp_path):
    llm = load(pairs)
    session = llm.session()
    session.stream(SHORT_PROMPT).close()  # which never began
    session.save(tmp_path / "session")
    assert llm.load_session(tmp_path / "session").tokens == ()


def test_a_session_without_its_caches_leaves_the_file_of_before(pairs, tmp_path):
    llm, file = load(pairs, "none", context=512), tmp_path / "session"
    session = llm.session()
    session.generate(SHORT_PROMPT, **OPTIONS)
    session.save(file)
    saved, held = file.read_bytes(), session.tokens
    llm.session().generate([5] * 300, **OPTIONS)
    assert session.tokens == ()  # forgotten
    loaded = llm.load_session(file)
    llm.session().generate([5] * 300, **OPTIONS)
    for each in (session, loaded):
        with pytest.raises(InputError, match="dropped for other sessions"):
            each.save(file)
    llm.close()
    with pytest.raises(InputError, match="the model was closed"):
        session.save(file)
    assert file.read_bytes() == saved
    assert load(pairs).load_session(file).tokens == held


def test_files_that_are_no_session_of_the_bundle_are_refused(pairs, tmp_path):
    llm, file, bad = load(pairs, "model"), tmp_path / "session", tmp_path / "bad"
    with llm.session() as session:
        session.generate(SHORT_PROMPT, **OPTIONS)
        session.save(file)
    with pytest.raises(InputError, match="start a new session"):
        load(pairs, name="twin").load_session(file)
    with pytest.raises(InputError, match="cannot be read"):
        llm.load_session(tmp_path / "missing")
    bad.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match="cannot be read"):
        llm.load_session(bad)
    tensors, metadata = load_file(file), {"kind": "edgespec session", "version": "1"}
    weights = torch.ones(2, dtype=torch.float8_e4m3fn)  # a checkpoint's, which numpy cannot read
    torch_save({"weight": weights}, bad)
    with pytest.raises(InputError, match="not a session file of version 1"):
        llm.load_session(bad)
    save_file(tensors, bad, {**metadata, "version": "2"})
    with pytest.raises(InputError, match="not a session file of version 1"):
        llm.load_session(bad)
    metadata["bundle"] = llm.bundle.digest
    damaged = (
        ("target.0", tensors["target.0"][:, :, :, 1:]),
        ("draft.0", tensors["draft.0"].astype(np.float64)),
        ("target.tokens", tensors["target.tokens"].astype(np.int32)),
        ("target.tokens", np.array(5)),
        ("target.tokens", tensors["target.tokens"][:, None]),
    )
    for name, array in damaged:
        save_file({**tensors, name: np.array(array, order="C")}, bad, metadata)
        with pytest.raises(InputError, match="is damaged"):
            llm.load_session(bad)
    assert llm._texts.shared.slots._slots == []
    save_file(tensors, bad, metadata)
    assert llm.load_session(bad).tokens


def test_a_file_that_cannot_be_written_leaves_the_old_one(pairs, tmp_path, monkeypatch):
    llm, file = load(pairs, "none"), tmp_path / "session"
    session = llm.session()
    session.generate(SHORT_PROMPT, **OPTIONS)
    session.save(file)
    file.chmod(0o600)
    session.save(file)
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_bytes()
    full = "No space left on device"
    for error in (OSError(28, full), SafetensorError(full)):  # as Python and as safetensors say it
        monkeypatch.setattr("edgespec.api.snapshots.save_file", failing(error))
        with pytest.raises(InputError, match=f"cannot be written .*{full}"):
            session.save(file)
        assert file.read_bytes() == before
        assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(InputError, match="cannot be written"):
        session.save(tmp_path / "no folder" / "session")
    with pytest.raises(InputError, match="cannot be written"):
        session.save(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match="not a regular file"):
            session.save(tmp_path / "pipe")
        assert (tmp_path / "pipe").is_fifo()
    monkeypatch.undo()
    monkeypatch.setattr(os, "access", lambda *_: False)  # which is never said to root
    with pytest.raises(InputError, match="write-protected"):
        session.save(file)
    assert file.read_bytes() == before


def test_a_loop_of_links_is_no_file_to_write(pairs, tmp_path):
    for name, target in (("a", "b"), ("b", "a")):
        linked(tmp_path / name, tmp_path / target)
    with pytest.raises(InputError, match="not a regular file"):
        load(pairs, "none").session().save(tmp_path / "a")
    assert (tmp_path / "a").is_symlink()


def failing(error):
    def fail(*_):
        raise error

    return fail


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["llama", "half", "cut"])
def test_a_runner_goes_on_from_a_snapshot(pairs, engine, name):
    from edgespec import bundle
    from edgespec.runtime.engines import engine as engine_of
    from edgespec.runtime.execution.runner import Runner

    model = Model.load(bundle.load(pairs.pair(name).path), "target", engine_of(engine), 1)
    text = [number % 300 + 1 for number in range(400)]
    one = Runner(model)
    one.prefill(text[:300])
    other = Runner(model)
    other.prefill(text[5:50])
    other.restore(one.snapshot(300))
    assert other.tokens == text[:300]
    expected = one.prefill(text[300:])["logits"][0].copy()
    np.testing.assert_array_equal(other.prefill(text[300:])["logits"][0], expected)
    other.resume(text[:20])
    assert (other.length, other.tokens) == (19, text[:19])
    other.resume(text[1:])
    assert other.length == 0
    assert other.bytes == Runner(model).bytes
