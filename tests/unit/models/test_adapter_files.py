"""Files of adapters: what is no plain LoRA of a model's matrices is refused by name."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from adapters import write_gguf, write_peft
from checkpoints import make_checkpoint
from gguf import GGUFWriter
from ggufs import add_field
from safetensors.numpy import load_file, save_file

from edgespec import export
from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models.adapters.opening import open_adapter

A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("model") / "model", "llama", tokens=0)


@pytest.fixture
def folder(model, tmp_path):
    write_peft(tmp_path / "adapter", model, ("q_proj", "k_proj"))
    return tmp_path / "adapter"


def test_an_adapter_is_read_from_its_folder_or_its_file(folder):
    whole = open_adapter(folder).updates
    name = "model.layers.1.self_attn.k_proj.weight"
    assert len(whole) == 4
    assert [whole[name].a.shape, whole[name].b.shape] == [(4, 64), (24, 4)]
    again = open_adapter(folder / "adapter_model.safetensors").updates
    np.testing.assert_array_equal(again[name].b, whole[name].b)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peft_type", "LOHA"),
        ("use_dora", True),
        ("bias", "all"),
        ("modules_to_save", ["lm_head"]),
        ("fan_in_fan_out", True),
        ("init_lora_weights", "pissa"),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
    ],
)
def test_what_is_no_plain_lora_is_refused_by_its_field(folder, field, value):
    change(folder, **{field: value})
    with pytest.raises(UnsupportedModelError, match=f"{field}.*merge it into its model"):
        open_adapter(folder)


def change(folder, **fields):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def store(folder, **changes):
    """Changes tensors of an adapter, or leaves out those that become None."""
    file = folder / "adapter_model.safetensors"
    tensors = {**load_file(file), **changes}
    save_file({name: each for name, each in tensors.items() if each is not None}, file)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (A, None, "lacks lora_A or lora_B"),
        (A, np.zeros((3, 64), np.float32), "do not fit each other"),
        (A, np.full((4, 64), np.nan, np.float32), "contains infinity or NaN"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", np.zeros((4, 9), "f4"), "no part"),
        (A.replace("lora_A.weight", "lora_magnitude_vector"), np.zeros(9, "f4"), "is no part of"),
    ],
)
def test_tensors_that_do_not_belong_are_refused(folder, name, value, message):
    store(folder, **{name: value})
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        open_adapter(folder)


def test_expressions_in_patterns_are_refused(folder):
    change(folder, alpha_pattern={"(q_proj|a+)+": 2})
    with pytest.raises(UnsupportedModelError, match="use names of modules, not expressions"):
        open_adapter(folder)


def test_pickled_and_missing_files_are_refused(folder, tmp_path):
    with pytest.raises(CheckpointError, match=r"has no adapter_config\.json"):
        open_adapter(tmp_path)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(UnsupportedModelError, match="is pickled, and could run any code"):
        open_adapter(folder)


def test_an_adapter_in_place_of_a_model_is_refused_with_a_remedy(model, folder, tmp_path):
    with pytest.raises(UnsupportedModelError, match="give the model, and this folder with --lora"):
        export.make(folder, tmp_path / "bundle")
    write_gguf(tmp_path / "adapter.gguf", model)
    with pytest.raises(UnsupportedModelError, match="give its model, and this file with --lora"):
        export.make(tmp_path / "adapter.gguf", tmp_path / "bundle")


def gguf_of(file, tensors, **metadata):
    writer = GGUFWriter(file, metadata.pop("architecture", "llama"))
    fields = {"general.type": "adapter", "adapter.type": "lora", **metadata}
    for name, value in fields.items():
        add_field(writer, name, value)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


Q = "blk.0.attn_q.weight"
PAIR = {f"{Q}.lora_a": (4, 64), f"{Q}.lora_b": (96, 4)}


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        (PAIR, {"general.type": "model"}, "give the file of an adapter"),
        (PAIR, {"adapter.type": "control_vector"}, "merge it into its model"),
        (PAIR, {"architecture": "mamba9"}, "general.architecture"),
        (PAIR, {"architecture": "qwen35"}, "give the adapter's folder of PEFT"),
        (PAIR, {"adapter.lora.alpha": -1.0}, "must be a positive"),
        ({f"{Q}.lora_a": (4, 64)}, {}, "is no pair of matrices"),
        ({"blk.0.ffn_up_exps.weight.lora_a": (2, 4, 64)}, {}, "is no pair of matrices"),
        ({Q: (4, 64)}, {}, "is no pair of matrices"),
    ],
)
def test_other_gguf_files_are_refused(tmp_path, tensors, metadata, message):
    file = gguf_of(tmp_path / "adapter.gguf", tensors, **metadata)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        open_adapter(file)


def test_cut_files_are_refused(folder, model, tmp_path):
    shutil.copy(folder / "adapter_model.safetensors", tmp_path / "whole")
    write_gguf(tmp_path / "adapter.gguf", model)
    for file in (folder / "adapter_model.safetensors", tmp_path / "adapter.gguf"):
        content = file.read_bytes()
        for size in (0, 7, len(content) // 2, len(content) - 1):
            file.write_bytes(content[:size])
            with pytest.raises(CheckpointError):
                open_adapter(file)
