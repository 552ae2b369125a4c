"""Exports that cannot be: each says why, and leaves the destination as it was."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from checkpoints import edit_json, make_checkpoint, write_tokenizer
from huggingface_hub.errors import GatedRepoError
from safetensors.numpy import load_file, save_file

from edgespec import bundle as bundles
from edgespec.errors import BundleError, CheckpointError, ExportError, UnsupportedModelError
from edgespec.export import ExportOptions, export_bundle, resolve_checkpoint
from edgespec.export.graph import DataFile

REPLACE = ExportOptions(overwrite=True)
posix = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "llama"
    make_checkpoint(path, "llama")
    write_tokenizer(path, 331)
    return path


@pytest.fixture
def source(saved, tmp_path):
    """A checkpoint that may be damaged."""
    return shutil.copytree(saved, tmp_path / "source")


@pytest.fixture
def output(tmp_path):
    """A destination in a folder of its own, so that anything left beside it shows."""
    (tmp_path / "made").mkdir()
    return tmp_path / "made" / "bundle"


def content(folder):
    """All that lies in a folder, hidden files too, with its bytes."""
    return {
        str(file.relative_to(folder)): file.read_bytes() if file.is_file() else None
        for file in folder.rglob("*")
    }


def refused(kind, match, output, *arguments):
    """The export fails, and beside and at the destination is what was there before."""
    before = content(output.parent)
    with pytest.raises(kind, match=match):
        export_bundle(arguments[0], output, *arguments[1:])
    assert content(output.parent) == before


# Checkpoints


def test_missing_weights(source, output):
    (source / "model.safetensors").unlink()
    refused(CheckpointError, r"neither model\.safetensors nor", output, source)


def test_truncated_weights(source, output):
    weights = source / "model.safetensors"
    data = weights.read_bytes()
    for size in (0, 4, 100, len(data) - 1):
        weights.write_bytes(data[:size])
        refused(CheckpointError, "truncated or corrupt", output, source)
    weights.write_bytes(data)
    export_bundle(source, output)


def test_weights_that_shrink_while_they_are_read(source, output, monkeypatch):
    weights = source / "model.safetensors"
    write = DataFile.write

    def shrinking(self, array):
        write(self, array)
        weights.write_bytes(weights.read_bytes()[:5000])

    monkeypatch.setattr(DataFile, "write", shrinking)
    refused(CheckpointError, "changed while it was read", output, source)


def test_wrong_shape(source, output):
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name][:-1].copy()
    save_file(tensors, source / "model.safetensors")
    refused(CheckpointError, rf"{name} has shape \[159, 64\], .* \[160, 64\]", output, source)


@pytest.mark.parametrize("precision", ["int4", "fp32"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_numbers(source, output, precision, value):
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 5] = value
    save_file(tensors, source / "model.safetensors")
    options = ExportOptions(precision)
    match = f"{name} holds infinity or NaN"
    refused(CheckpointError, match, output, source, None, options)


def test_weights_beyond_half_precision(source, output):
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 5] = -70_000
    save_file(tensors, source / "model.safetensors")
    match = rf"{name} holds 70000, half precision ends at 65504: export at fp32"
    for precision in ("fp16", "int8", "int4"):
        refused(ExportError, match, output, source, None, ExportOptions(precision))
    export_bundle(source, output, options=ExportOptions("fp32"))


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_weights_too_small_for_scales_in_half_precision(source, output, precision):
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][:] = 1e-6
    save_file(tensors, source / "model.safetensors")
    match = rf"{name} holds weights of about 1e-06, too small for scales .*: export at fp32"
    refused(ExportError, match, output, source, None, ExportOptions(precision))
    export_bundle(source, output, options=ExportOptions("fp32"))


def test_missing_tensor(source, output):
    tensors = load_file(source / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, source / "model.safetensors")
    refused(CheckpointError, r"no tensor model\.norm\.weight", output, source)


def test_unknown_architecture(source, output):
    edit_json(source / "config.json", model_type="mamba")
    refused(UnsupportedModelError, "mamba", output, source)


def test_a_damaged_draft_is_found_before_the_target_is_written(saved, source, output):
    (source / "model.safetensors").write_bytes(b"")
    refused(CheckpointError, "truncated or corrupt", output, saved, source)


def test_what_is_neither_a_folder_nor_a_name_on_the_hub(tmp_path):
    for name in (str(tmp_path / "nothing"), "one", "a/b/c"):
        with pytest.raises(ExportError, match="no such folder, and not a Hub id"):
            resolve_checkpoint(name)
    assert resolve_checkpoint(str(tmp_path)) == tmp_path


def test_a_model_on_the_hub_whose_licence_was_not_accepted(monkeypatch):
    def refuse(source, **_):
        raise GatedRepoError.__new__(GatedRepoError)  # its arguments differ between versions

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ExportError, match=r"one/two: .* its licence: .* `hf auth login`"):
        resolve_checkpoint("one/two")


# Vocabularies


def test_tokenizers_that_differ(saved, tmp_path, output):
    make_checkpoint(tmp_path / "small", "llama", vocab_size=300)
    write_tokenizer(tmp_path / "small", 300)
    refused(ExportError, "draft vocabulary 300 differs from target 331", output, saved,
            tmp_path / "small")  # fmt: skip


def test_tokenizers_of_one_size_that_disagree(saved, source, output):
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(ExportError, "is id 3.. for the target and 3.. for the draft", output, saved, source)


def test_a_tokenizer_of_another_model(source, output):
    write_tokenizer(source, 400)
    refused(CheckpointError, "token id 399 is beyond vocab_size 331", output, source)
    for damaged in ("{}", '{"model": {"vocab": {"a": "0"}}}', "[" * 100_000):
        (source / "tokenizer.json").write_text(damaged)
        refused(CheckpointError, "not a tokenizer", output, source)
    (source / "tokenizer.json").unlink()
    refused(CheckpointError, r"no tokenizer\.json", output, source)


def test_padded_vocabularies_pass(saved, tmp_path, output):
    make_checkpoint(tmp_path / "padded", "llama", vocab_size=384, seed=1)
    write_tokenizer(tmp_path / "padded", 331)
    export_bundle(saved, output, tmp_path / "padded")
    bundle = bundles.load(output)
    assert (bundle.target.vocab_size, bundle.draft.vocab_size) == (331, 384)


# Destinations


def test_places_where_no_bundle_can_be(saved, output):
    refused(ExportError, "missing does not exist", output.parent / "missing" / "bundle", saved)
    (output.parent / "file").write_text("mine")
    refused(ExportError, "is not a folder", output.parent / "file" / "bundle", saved)
    refused(ExportError, "exists and is not a bundle", output.parent / "file", saved, None, REPLACE)


def test_an_existing_bundle_stays_unless_overwriting_is_asked_for(saved, output):
    export_bundle(saved, output, options=ExportOptions(precision="int8"))
    refused(ExportError, "exists: choose another name, or pass --overwrite", output, saved)
    export_bundle(saved, output, options=REPLACE)
    assert bundles.load(output).target.precision.weights == "int4"
    assert list(output.parent.iterdir()) == [output]


def test_overwriting_never_removes_what_is_not_a_bundle(saved, output):
    output.mkdir()
    (output / "thesis.txt").write_text("mine")
    refused(ExportError, "exists and is not a bundle", output, saved, None, REPLACE)
    (output / bundles.MANIFEST).write_text('{"name": "a web page"}')
    refused(ExportError, "exists and is not a bundle", output, saved, None, REPLACE)


def test_an_empty_folder_may_be_overwritten(saved, output):
    output.mkdir()
    refused(ExportError, "exists: ", output, saved)
    export_bundle(saved, output, options=REPLACE)
    assert bundles.load(output).path == output


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_appears_during_an_export_stays(saved, output, overwrite):
    def progress(_role, _done, _total):
        output.mkdir(exist_ok=True)
        (output / "thesis.txt").write_text("mine")

    with pytest.raises(ExportError, match="exists and is not a bundle"):
        export_bundle(saved, output, options=ExportOptions(overwrite=overwrite), progress=progress)
    assert content(output.parent) == {"bundle": None, "bundle/thesis.txt": b"mine"}


def export_elsewhere(source, output):
    """Export in another process."""
    run = [sys.executable, "-m", "edgespec", "export", source, "-o", output]
    subprocess.run(run, cwd=output.parent.parent, check=True)


def test_of_two_exports_at_once_the_later_one_replaces_nothing_unasked(saved, output):
    def progress(_role, _done, _total):
        if not output.exists():
            export_elsewhere(saved, output)

    with pytest.raises(ExportError, match="exists: choose another name, or pass --overwrite"):
        export_bundle(saved, output, options=ExportOptions("int8"), progress=progress)
    assert bundles.load(output).target.precision.weights == "int4"


# Faults on the way


@pytest.fixture
def full_disk(monkeypatch):
    written, write = [], DataFile.write

    def failing(self, array):
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(array.nbytes)
        write(self, array)

    monkeypatch.setattr(DataFile, "write", failing)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk(saved, output):
    refused(ExportError, "No space left on device.*free some space", output, saved)


def test_a_full_disk_keeps_the_old_bundle(saved, output, request):
    export_bundle(saved, output)
    request.getfixturevalue("full_disk")
    refused(ExportError, "No space left on device", output, saved, None, REPLACE)
    bundles.load(output).verify()


def test_an_interrupted_export(saved, output):
    def progress(_role, done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_bundle(saved, output, progress=progress)
    assert list(output.parent.iterdir()) == []


def test_the_old_bundle_comes_back_if_the_new_one_cannot_take_its_place(saved, output, monkeypatch):
    export_bundle(saved, output)
    rename = Path.rename

    def failing(self, target):
        if ".partial-" in self.name:
            raise OSError(errno.EACCES, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    refused(ExportError, "Permission denied", output, saved, None, REPLACE)
    bundles.load(output).verify()


KILLED = """
import os, pathlib, signal, sys
from edgespec.export import ExportOptions, export_bundle, graph

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

calls = 0
write, rename = graph.DataFile.write, pathlib.Path.rename

def write_or_die(self, array):
    global calls
    calls += 1
    kill() if calls == 9 else write(self, array)

def rename_or_die(self, target):
    kill() if ".partial-" in self.name else rename(self, target)

if sys.argv[1] == "writing":
    graph.DataFile.write = write_or_die
else:
    pathlib.Path.rename = rename_or_die
source, output = map(pathlib.Path, sys.argv[2:])
export_bundle(source, output, options=ExportOptions(overwrite=True))
"""


def kill_while(doing, source, output):
    run = [sys.executable, "-c", KILLED, doing, source, output]
    died = subprocess.run(run, cwd=output.parent.parent, check=False)
    assert died.returncode == -signal.SIGKILL


@posix
def test_a_killed_export_leaves_nothing_that_loads_and_the_next_one_succeeds(saved, output):
    kill_while("writing", saved, output)
    assert not output.exists()
    (left,) = output.parent.iterdir()
    assert left.name.startswith(".bundle.partial-")
    with pytest.raises(BundleError, match="holds no manifest"):
        bundles.load(left)
    export_bundle(saved, output)
    bundles.load(output).verify()
    assert list(output.parent.iterdir()) == [output]


@posix
def test_an_export_killed_while_replacing_loses_no_bundle(saved, output):
    export_bundle(saved, output, options=ExportOptions(precision="int8"))
    kill_while("replacing", saved, output)
    assert not output.exists()
    with pytest.raises(ExportError, match="exists: "):
        export_bundle(saved, output)
    assert bundles.load(output).target.precision.weights == "int8"
    assert list(output.parent.iterdir()) == [output]
