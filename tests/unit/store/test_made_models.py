"""Models that are no bundles: made into one once, found again, and never found half made."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoints import make_checkpoint
from ggufs import write_gguf
from heads import write_head
from native_llms import cheapen
from transformers import LlamaConfig

from edgespec import LLM, export
from edgespec import bundle as bundles
from edgespec.errors import CheckpointError, ExportError, InputError
from edgespec.export.graph_builder import DataFile
from edgespec.store.making import bundle_of
from edgespec.store.store import BundleStore

SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
PROMPT = "def wrap(text):"
FAST = {"threads": 1, "context": 128}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A target, and a draft of fewer layers, as checkpoints and as GGUF files."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("target", "draft")):
        layers = {"num_hidden_layers": 1 + 6 * (name == "target")}
        make_checkpoint(folder / name, "llama", seed=seed, **SIZES, **layers)
        chat = {"tokenizer.chat_template": TEMPLATE}
        write_gguf(folder / name, folder / f"{name}.gguf", "Q8_0", **chat)
    return folder


@pytest.fixture
def said():
    return []


@pytest.fixture
def made(models, own_cache, said):
    """Makes a bundle of one of the models, in a cache of the test's own."""

    def make(name, draft=None):
        drafting = None if draft is None else models / draft
        return bundle_of(models / name, drafting, say=said.append)

    return make


def left(cache):
    """What the store holds besides whole bundles."""
    return {
        each.name
        for each in (cache / "models").iterdir()
        if each.name != ".lock" and not (each / bundles.MANIFEST).is_file()
    }


# Once


@pytest.mark.parametrize("name", ["target.gguf", "target"])
def test_the_text_is_that_of_an_exported_bundle(models, own_cache, tmp_path, name):
    export.make(models / name, tmp_path / "bundle")
    with LLM(tmp_path / "bundle", **FAST) as llm:
        expected = llm.generate(PROMPT, max_new_tokens=24).tokens
    for _ in range(2):
        with LLM(str(models / name), **FAST) as llm:
            assert llm.generate(PROMPT, max_new_tokens=24).tokens == expected


def test_a_program_is_told_how_far_it_is(models, own_cache):
    told = []
    file = str(models / "target.gguf")
    with LLM(file, progress=lambda *facts: told.append(facts), **FAST):
        assert [*dict.fromkeys(stage for stage, _, _ in told)] == ["reading", "target"]
        for stage in ("reading", "target"):
            done = [each for name, each, _ in told if name == stage]
            assert done == sorted(done)
            assert done[-1] == next(total for name, _, total in told if name == stage) > 1
    told.clear()
    with LLM(file, progress=lambda *facts: told.append(facts), **FAST):
        assert not told


def test_terminals_show_how_far_it_is_and_others_nothing(models, own_cache, capfd):
    pty = pytest.importorskip("pty")
    program = f"from edgespec import LLM; LLM({str(models / 'draft.gguf')!r}, threads=1).close()"
    command = [sys.executable, "-P", "-c", program]
    shown = []

    def read(file):
        shown.append(os.read(file, 1024))
        return shown[-1]

    pty.spawn(command, read)
    text = b"".join(shown).decode()
    assert text.count("making a bundle of draft, once: ") == 1
    assert "target" in text
    assert "100%" in text
    shutil.rmtree(own_cache)
    run = subprocess.run(command, capture_output=True, check=True)
    assert (run.stdout, run.stderr) == (b"", b"")


@pytest.mark.parametrize("name", ["target.gguf", "target"])
def test_a_second_start_reads_nothing_of_the_model(made, said, monkeypatch, name):
    folder = made(name)
    assert [line.split(",")[0] for line in said] == ["making a bundle of target"]

    def read(path, *_):
        pytest.fail(f"{path} is read")

    monkeypatch.setattr(bundles, "sha256", read)
    assert made(name) == folder
    assert len(said) == 1


def test_a_folder_with_the_name_of_another_model_is_used_and_that_is_said(
    made, models, said, tmp_path, monkeypatch
):
    stored = made("target.gguf")
    monkeypatch.chdir(models)
    folder = bundle_of("target", say=said.append)
    assert folder.name == "target-2"
    told = [each for each in said if "`edgespec models name target NEW`" in each]
    assert [each.split(",")[0] for each in told] == [f"target is {models / 'target'} here"]
    bundle_of("target", say=said.append)
    assert len(said) == len([*told, *told]) + 2  # and two bundles were made
    monkeypatch.chdir(tmp_path)
    assert bundle_of("target", say=said.append) == stored
    BundleStore().remove("target")
    BundleStore().rename("target-2", "target")
    monkeypatch.chdir(models)
    os.utime("target/config.json", (1, 1))
    assert bundle_of("target", say=said.append).name == "target"
    monkeypatch.chdir(stored.parent)
    assert bundle_of("target", say=said.append).name == "target"
    assert len(said) == 4


def test_the_same_content_elsewhere_is_found(made, models, said, tmp_path):
    folder = made("target.gguf")
    copy = shutil.copy(models / "target.gguf", tmp_path / "other.gguf")
    assert bundle_of(copy, say=said.append) == folder
    assert bundle_of(str(copy), say=said.append) == folder
    assert len(said) == 1


def test_a_file_that_changed_takes_the_place_of_the_old_one(models, own_cache, tmp_path):
    file = tmp_path / "model.gguf"
    shutil.copy(models / "target.gguf", file)
    first = bundles.load(bundle_of(file)).digest
    shutil.copy(models / "draft.gguf", file)
    assert bundles.load(bundle_of(file)).digest != first
    assert list(BundleStore().made()) == ["model"]


def test_a_bundle_that_was_damaged_is_made_anew(made, said):
    folder = made("target.gguf")
    (folder / "target.tiles").write_bytes(b"")
    bundles.load(made("target.gguf"))
    assert len(said) == 2


def test_a_bundle_is_used_as_it_is(made, models, own_cache, tmp_path):
    export.make(models / "draft", tmp_path / "bundle")
    assert bundle_of(tmp_path / "bundle") == tmp_path / "bundle"
    assert not (own_cache / "models").exists() or not BundleStore().made()


# Drafts


def test_a_draft_is_a_model_like_any_other(models, own_cache):
    with LLM(models / "target.gguf", draft="none", **FAST) as llm:
        expected = llm.generate(PROMPT, max_new_tokens=24).tokens
        alone = llm.bundle.path
    for draft in (models / "draft.gguf", str(models / "draft")):
        with LLM(models / "target.gguf", draft=draft, **FAST) as llm:
            assert llm.options.draft == "auto"
            assert "model" in llm.draft_sources
            found = llm.generate(PROMPT, max_new_tokens=24, draft_source="model")
            assert found.tokens == expected
            assert (llm.bundle.path / "target.tiles").samefile(alone / "target.tiles")
    assert set(BundleStore().made()) == {"target", "target+draft", "target+draft-2"}


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("name", ["target", "target.gguf"])
def test_a_head_drafts_for_a_model(made, models, own_cache, tmp_path, name, flat):
    sizes = LlamaConfig.from_pretrained(models / "target")
    write_head(tmp_path / "head", sizes, flat=flat)
    with cheapen(LLM(made(name, tmp_path / "head"), **FAST)) as llm:
        expected = llm.generate(PROMPT, max_new_tokens=24, draft_source="none").tokens
        found = llm.generate(PROMPT, max_new_tokens=24, draft_source="head")
        assert found.tokens == expected
        assert found.drafted > 0
    sizes.hidden_size = 32
    write_head(tmp_path / "other", sizes, flat=flat)
    shown = []
    with pytest.raises(CheckpointError, match="must be the target's, 64"):
        bundle_of(models / name, tmp_path / "other", lambda *each: shown.append(each))
    assert {stage for stage, _, _ in shown} == {"reading"}  # before the target is written
    assert left(own_cache) == set()


def test_a_bundle_gets_a_draft_and_keeps_its_own_files(made, models, tmp_path):
    export.make(models / "target", tmp_path / "bundle")
    before = bundles.load(tmp_path / "bundle").digest
    pair = bundles.load(bundle_of(tmp_path / "bundle", models / "draft.gguf"))
    assert pair.draft is not None
    assert bundles.load(tmp_path / "bundle").digest == before
    with pytest.raises(InputError, match="is a bundle, which cannot be a draft"):
        bundle_of(models / "target.gguf", tmp_path / "bundle")
    made("draft.gguf")  # in the store it is called draft, and stands for the file
    assert bundles.load(bundle_of(models / "target.gguf", "draft")).draft is not None


@pytest.mark.parametrize(("encoding", "form"), [("Q5_0", "q5_0"), ("Q8_0", "q4_0")])
def test_a_draft_keeps_what_its_file_has_in_few_bits(models, made, tmp_path, encoding, form):
    file = tmp_path / "small.gguf"
    write_gguf(models / "draft", file, encoding)
    draft = bundles.load(made("target.gguf", file)).draft
    assert set(draft.native.formats) == {form}
    assert set(draft.quantization_error.values()) == {0} or form == "q4_0"


def test_a_draft_that_fits_is_proposed(made, said):
    made("draft.gguf")
    made("target.gguf")
    assert said[-1].endswith("can draft for it, which is faster: --draft draft")
    made("target.gguf", "draft.gguf")
    assert "--draft" not in said[-1]


# Never half made


def test_a_full_disk_leaves_nothing(made, own_cache, monkeypatch):
    def full(self, array):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(DataFile, "write", full)
        with pytest.raises(ExportError, match=r"No space left on device.*free some space"):
            made("target.gguf")
    assert not BundleStore().made()
    assert not left(own_cache)
    with monkeypatch.context() as patch:
        patch.setattr("edgespec.store.making.write_record", full)
        with pytest.raises(ExportError, match="No space left on device"):
            made("target.gguf")
    assert not BundleStore().made()
    bundles.load(made("target.gguf"))


def test_a_model_that_is_damaged_leaves_nothing(own_cache, models, tmp_path):
    whole = (models / "target.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"cut\.gguf"):
        bundle_of(tmp_path / "cut.gguf")
    assert not left(own_cache)


PAUSED = """
import sys, time
from pathlib import Path
from edgespec.export.graph_builder import DataFile
from edgespec.store.making import bundle_of

write = DataFile.write
def paused(self, array):
    write(self, array)
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.01)

DataFile.write = paused
print(bundle_of(sys.argv[1]))
"""


@pytest.fixture
def paused(models, own_cache, tmp_path):
    """A process that is making a bundle, and goes on when a file `go` is there."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", PAUSED, str(models / "target.gguf")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.01)
    yield process
    process.kill()
    process.communicate()


def test_one_that_is_killed_leaves_nothing_that_is_found(paused, made, own_cache):
    assert left(own_cache)
    assert not BundleStore().made()
    paused.kill()
    paused.wait()
    bundles.load(made("target.gguf"))
    assert not left(own_cache)


def test_the_second_waits_for_the_first(paused, models, said, tmp_path):
    def say(line):
        said.append(line)
        (tmp_path / "go").touch()

    folder = bundle_of(models / "target.gguf", say=say)
    assert said == ["waiting for another process that makes a bundle"]
    assert paused.communicate(timeout=60)[0].strip() == str(folder)
    assert list(BundleStore().made()) == [folder.name]


# Names


def test_names_are_of_letters_and_free(made, models):
    made("target.gguf")
    made("draft.gguf")
    store = BundleStore()
    for name in ("", "a b", "../x", "a/b", ".x", "x.gguf"):
        with pytest.raises(InputError, match="cannot be a model's name"):
            store.rename("target", name)
    with pytest.raises(InputError, match="there is a model 'draft' already"):
        store.rename("target", "draft")
    store.rename("target", "My-Model.2")
    assert bundle_of("My-Model.2") == bundle_of(models / "target.gguf")
    with pytest.raises(InputError, match=r"no model 'nothing' .* has My-Model\.2, draft"):
        store.remove("draft", "nothing")
    store.remove("draft", "My-Model.2")
    assert not store.made()


def test_a_name_that_is_near_is_proposed(made):
    made("target.gguf")
    with pytest.raises(InputError, match=r"there is no model 'tarqet': .*did you mean target\?"):
        bundle_of("tarqet")
    with pytest.raises(InputError, match="there is no model 'nowhere/at/all': no such file"):
        bundle_of(Path("nowhere/at/all"))


def test_without_a_cache_folder_bundles_still_load(models, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="no cache folder: set EDGESPEC_CACHE"):
        bundle_of(models / "target.gguf")
    assert bundle_of(None).is_dir()
