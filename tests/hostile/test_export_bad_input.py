"""Checkpoints that cannot be exported: each says why, and leaves the destination as it was."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from checkpoints import make_checkpoint, write_tokenizer
from exports import refused
from huggingface_hub.errors import GatedRepoError
from safetensors.numpy import load_file, save_file

from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import CheckpointError, ExportError, InputError, UnsupportedModelError
from edgespec.export import ExportOptions, resolve_checkpoint
from edgespec.export.graph_builder import DataFile


@pytest.fixture(scope="module")
def saved(saved_checkpoint):
    return saved_checkpoint("llama")


@pytest.fixture
def source(saved, tmp_path):
    """A checkpoint that may be damaged."""
    return shutil.copytree(saved, tmp_path / "source")


# Checkpoints


@pytest.mark.parametrize("merged", [False, True])
def test_an_adapter(source, output, merged):
    named = {"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-2-7b-hf"}
    (source / "adapter_config.json").write_text(json.dumps(named))
    if not merged:
        (source / "config.json").unlink()
        (source / "model.safetensors").rename(source / "adapter_model.safetensors")
    match = "adapter_config.json: base_model_name_or_path='meta-llama/Llama-2-7b-hf' .* with --lora"
    refused(UnsupportedModelError, match, output, source)


def test_weights_in_gguf(saved, source, output):
    (source / "model.safetensors").rename(source / "model.Q4_K_M.gguf")
    refused(
        CheckpointError, r"give one of the files, such as .*model\.Q4_K_M\.gguf", output, source
    )
    # What is downloaded of such a repository.
    (source / "model.Q4_K_M.gguf").unlink()
    (source / "config.json").write_text('{"model_type": "llama"}')
    refused(CheckpointError, "has neither model.safetensors nor", output, source)
    # Some have both.
    (source / "model.Q4_K_M.gguf").touch()
    shutil.copytree(saved, source, dirs_exist_ok=True)
    export.make(source, output)


def test_truncated_weights(source, output):
    weights = source / "model.safetensors"
    data = weights.read_bytes()
    for size in (0, 4, 100, len(data) - 1):
        weights.write_bytes(data[:size])
        refused(CheckpointError, "truncated or corrupt", output, source)
    weights.write_bytes(data)
    export.make(source, output)


def test_weights_that_shrink_while_they_are_read(source, output, monkeypatch):
    weights = source / "model.safetensors"
    write = DataFile.write

    def shrinking(self, array):
        write(self, array)
        weights.write_bytes(weights.read_bytes()[:5000])

    monkeypatch.setattr(DataFile, "write", shrinking)
    refused(CheckpointError, "changed while it was read", output, source)


@pytest.mark.parametrize("precision", ["int4", "fp32"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_numbers(source, output, precision, value):
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 5] = value
    save_file(tensors, source / "model.safetensors")
    options = ExportOptions(precision)
    match = f"{name} contains infinity or NaN"
    refused(CheckpointError, match, output, source, None, options)


def test_weights_beyond_half_precision(source, output):
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 5] = -70_000
    save_file(tensors, source / "model.safetensors")
    match = rf"{name} contains 70000, but the largest .* is 65504: export at fp32"
    for precision in ("fp16", "int8", "int4"):
        refused(ExportError, match, output, source, None, ExportOptions(precision))
    export.make(source, output, options=ExportOptions("fp32"))


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_weights_too_small_for_scales_in_half_precision(source, output, precision):
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][:] = 1e-6
    save_file(tensors, source / "model.safetensors")
    match = rf"{name} contains weights of about 1e-06, too small for scales .*: export at fp32"
    refused(ExportError, match, output, source, None, ExportOptions(precision))
    export.make(source, output, options=ExportOptions("fp32"))


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_weights_are_too_small_where_the_others_are_not_much_larger(source, output, precision):
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][:] = 2e-5
    tensors[name][0] = 1e-3
    save_file(tensors, source / "model.safetensors")
    options = ExportOptions(precision)
    refused(ExportError, f"{name} contains weights .* too small", output, source, None, options)
    tensors[name][0] = 1.0
    save_file(tensors, source / "model.safetensors")
    export.make(source, output, options=options)


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_a_matrix_of_zeros_passes(source, output, precision):
    """As models have that were made deeper."""
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name][:] = 0
    save_file(tensors, source / "model.safetensors")
    export.make(source, output, options=ExportOptions(precision))
    assert bundles.load(output).target.quantization_error[name] == 0


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("precision", "int2", "int4, int4-small, source, int8, fp16, fp32"),
        ("draft_precision", "int2", "int4, int4-small, source, int8, fp16, fp32"),
        ("lm_head_precision", "int2", "int4, int6, int8, fp16, fp32"),
        ("kv_precision", "int4", "fp32, fp16, int8"),
    ],
)
def test_options_that_are_none_of_their_choices(name, value, known):
    with pytest.raises(InputError, match=f"^{name} is {value!r}: use one of {known}$"):
        ExportOptions(**{name: value})


def test_a_damaged_draft_is_found_before_the_target_is_written(saved, source, output):
    (source / "model.safetensors").write_bytes(b"")
    refused(CheckpointError, "truncated or corrupt", output, saved, source)


def test_what_is_neither_a_folder_nor_a_name_on_the_hub(tmp_path):
    for name in (str(tmp_path / "nothing"), "one", "a/b/c"):
        with pytest.raises(ExportError, match="no such folder or GGUF file, and not on the Hub"):
            resolve_checkpoint(name)
    assert resolve_checkpoint(str(tmp_path)) == tmp_path


def test_a_model_on_the_hub_whose_licence_was_not_accepted(monkeypatch):
    def refuse(source, **_):
        raise GatedRepoError.__new__(GatedRepoError)  # its arguments differ between versions

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ExportError, match=r"one/two: .* its licence first: .* `hf auth login`"):
        resolve_checkpoint("one/two")


# Vocabularies


def test_a_tokenizer_of_another_model(source, output):
    write_tokenizer(source, 400)
    refused(CheckpointError, "token id 399 exceeds vocab_size 331", output, source)
    for damaged in ("{}", '{"model": {"vocab": {"a": "0"}}}', "[" * 100_000):
        (source / "tokenizer.json").write_text(damaged)
        refused(CheckpointError, "not a tokenizer", output, source)
    (source / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {}, "merges": []}}')
    refused(CheckpointError, r"tokenizer\.json contains no tokens", output, source)
    (source / "tokenizer.json").unlink()
    refused(CheckpointError, r"no tokenizer\.json", output, source)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        (None, "pre_tokenizer", {"type": "Nope"}),
        ("model", "type", "Nope"),
        ("model", "merges", ["a b c d"]),
        ("model", "vocab", {"a": -1}),
        ("model", "vocab", {"a": True}),
    ],
)
def test_a_tokenizer_that_no_run_could_load(source, output, part, field, value):
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    (tokenizer if part is None else tokenizer[part])[field] = value
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(CheckpointError, r"tokenizer\.json is not a tokenizer that can be", output, source)


@pytest.mark.parametrize("name", ["special_tokens_map.json", "tokenizer_config.json"])
def test_settings_of_a_tokenizer_that_no_run_could_read(source, output, name):
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / name).write_text("[")
    refused(CheckpointError, f"{name} cannot be read as JSON", output, source)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json"]
)
def test_a_file_that_the_system_does_not_give(source, output, monkeypatch, name):
    """As modes are no bar to those who run tests as root."""
    (source / "special_tokens_map.json").write_text("{}")
    opened = os.open

    def failing(path, *arguments, **fields):
        if Path(path) == source / name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **fields)

    monkeypatch.setattr(os, "open", failing)
    refused(CheckpointError, rf"{name} cannot be read \(Permission denied\)", output, source)


def test_padded_vocabularies_pass(saved, tmp_path, output):
    make_checkpoint(tmp_path / "padded", "llama", vocab_size=384, seed=1)
    export.make(saved, output, tmp_path / "padded")
    bundle = bundles.load(output)
    assert (bundle.target.vocab_size, bundle.draft.vocab_size) == (331, 384)
