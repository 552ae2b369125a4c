"""Checkpoints of BitNet b1.58 with packed weights: their values, what keeps them, and refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from checkpoints import edit_json, make_checkpoint
from gguf import GGMLQuantizationType, quants
from nodes import MISSING
from parity import PROMPT, SAME, Text, distance, load, reference
from safetensors.torch import load_file, save_file
from transformers.integrations.bitnet import pack_weights

from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.export import ExportOptions
from edgespec.models import load_checkpoint

SCALE = 0.0859375  # which bf16 and half precision have exactly
SIZES = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 512}
CONFIG = {"quant_method": "bitnet", "quantization_mode": "offline"}
Q = "model.layers.0.self_attn.q_proj"


def packed(folder, linear_class="autobitlinear", scale=SCALE):
    """Makes a checkpoint of packed weights; returns transformers' model with the same weights."""
    model = make_checkpoint(folder, "bitnet", **SIZES)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    own = scale if linear_class == "autobitlinear" else 1 / scale
    for name, weight in dict(tensors).items():
        if name.endswith("_proj.weight"):
            levels = (weight / weight.abs().mean()).round().clamp(-1, 1)
            model.get_parameter(name).data = levels * SCALE
            tensors[name] = pack_weights(levels.clone())
            tensors[f"{name}_scale"] = torch.tensor([own], dtype=torch.float32)
    save_file(tensors, file)
    edit_json(folder / "config.json", quantization_config={**CONFIG, "linear_class": linear_class})
    return model


@pytest.mark.parametrize("linear_class", ["autobitlinear", "bitlinear"])
def test_weights_are_three_levels_times_a_scale(linear_class, tmp_path):
    model = packed(tmp_path, linear_class)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.quantization == "bitnet"
    tensors = checkpoint.tensors
    for name in (f"{Q}.weight", "model.layers.1.mlp.down_proj.weight"):
        expected = model.get_parameter(name).detach().numpy()
        assert np.array_equal(tensors.read(name), expected)
        rows = len(expected) // 4
        for start, stop in ((0, 1), (rows - 1, rows + 2), (3 * rows, 4 * rows)):
            assert np.array_equal(tensors.read_rows(name, start, stop), expected[start:stop])
        assert tensors.encoding(name) == "tq2_0"
        held = tensors.read_encoded(name, 3, 21)
        assert np.array_equal(quants.dequantize(held, GGMLQuantizationType.TQ2_0), expected[3:21])
    assert tensors.names == {*model.state_dict()}


@pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")
def test_logits_are_those_of_transformers_and_weights_keep_two_bits(tmp_path):
    model = packed(tmp_path / "checkpoint")
    export.make(tmp_path / "checkpoint", tmp_path / "fp32", options=ExportOptions("fp32"))
    found = Text(load(bundles.load(tmp_path / "fp32"))).read(PROMPT[:40])[-1]
    assert distance(found, reference(model, PROMPT[:40])) < SAME
    export.make(tmp_path / "checkpoint", tmp_path / "kept")
    manifest = json.loads((tmp_path / "kept" / "manifest.json").read_text())
    formats = manifest["roles"]["target"]["native"]["formats"]
    layers = sum(each.numel() for name, each in model.named_parameters() if "_proj" in name)
    assert formats["tq2_0"] == layers


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_mode": "online"}, "quantization_mode='online'"),
        ({"use_rms_norm": True}, "use_rms_norm=True"),
        ({"linear_class": "other"}, "linear_class='other'"),
    ],
)
def test_what_is_not_implemented_is_refused(changes, words, tmp_path):
    packed(tmp_path)
    edit_json(tmp_path / "config.json", quantization_config={**CONFIG, **changes})
    with pytest.raises(UnsupportedModelError, match=words):
        load_checkpoint(tmp_path)


def test_a_scale_of_nothing_is_named(tmp_path):
    packed(tmp_path, scale=0.0)
    with pytest.raises(CheckpointError, match=r"weight_scale is 0\.0, which scales no"):
        load_checkpoint(tmp_path)


def test_levels_beyond_two_are_refused(tmp_path):
    packed(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{Q}.weight"][0, 0] = 3
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{Q}.weight has levels beyond 2"):
        load_checkpoint(tmp_path).tensors.read(f"{Q}.weight")
