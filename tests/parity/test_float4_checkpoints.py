"""Checkpoints of ModelOpt and compressed-tensors in NVFP4: their values, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints import edit_json, make_checkpoint
from nodes import MISSING
from parity import PROMPT, Text, load, stored
from safetensors.torch import load_file, save_file

from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models import load_checkpoint

Q = "model.layers.0.self_attn.q_proj"
WIDE = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 64}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
}
KINDS = {"modelopt": MODELOPT, "compressed-tensors": COMPRESSED}
VALUES = (0, 0.5, 1, 1.5, 2, 3, 4, 6)  # of the lower three bits; the fourth is the sign


def quantize(folder, config):
    """Rounds the matrices of a checkpoint to random numbers; returns their weights."""
    rng = np.random.default_rng(0)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    found = {}
    for name in [each for each in tensors if each.endswith("_proj.weight")]:
        rows, width = tensors.pop(name).shape
        module = name.removesuffix("weight")
        levels = rng.integers(0, 16, (rows, width), np.uint8)
        scales = torch.tensor(rng.uniform(1, 400, (rows, width // 16))).to(torch.float8_e4m3fn)
        factor = np.float32(rng.uniform(1, 2) * 2e-4)
        packed = torch.from_numpy(levels[:, ::2] | levels[:, 1::2] << 4)
        tensors[f"{module}weight_scale"] = scales
        if config is MODELOPT:
            tensors[name] = packed
            tensors[f"{module}weight_scale_2"] = torch.tensor(factor)
            tensors[f"{module}input_scale"] = torch.tensor(1.0)
        else:
            inverse = np.float32(1) / factor
            factor = np.float32(1) / inverse
            tensors[f"{module}weight_packed"] = packed
            tensors[f"{module}weight_global_scale"] = torch.tensor([inverse])
            tensors[f"{module}input_global_scale"] = torch.tensor([1.0])
        signs = np.where(levels & 8, np.float32(-1), np.float32(1))
        parts = np.repeat(scales.float().numpy() * factor, 16, axis=1)
        found[name] = np.array(VALUES, np.float32)[levels & 7] * signs * parts
    save_file(tensors, file)
    edit_json(folder / "config.json", quantization_config=config)
    return found


@pytest.fixture(params=KINDS)
def made(tmp_path, request):
    """A checkpoint's folder, and the weights of its matrices."""
    folder = tmp_path / "folder"
    make_checkpoint(folder, "llama", **WIDE)
    return folder, quantize(folder, KINDS[request.param])


def test_values_are_those_of_the_definition(made):
    folder, weights = made
    tensors = load_checkpoint(folder).tensors
    for name, expected in weights.items():
        assert tensors.encoding(name) == "nvfp4_scaled"
        np.testing.assert_array_equal(tensors.read(name), expected)
        np.testing.assert_array_equal(tensors.read_rows(name, 3, 7), expected[3:7])
    assert not [name for name in tensors.names if "scale" in name or "packed" in name]


@pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")
def test_bundles_keep_the_numbers(made, tmp_path):
    folder, weights = made
    export.make(folder, tmp_path / "bundle")
    found = stored(bundles.load(tmp_path / "bundle"))
    for name, expected in weights.items():
        assert found[name].format == "nvfp4"
        np.testing.assert_array_equal(found[name].values, expected)
    assert np.isfinite(Text(load(tmp_path / "bundle")).read(PROMPT[:9])).all()


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [
        ("weight_scale", np.nan, "has scales that are negative, infinity or NaN"),
        ("weight_scale", -1.0, "has scales that are negative, infinity or NaN"),
        ("weight_scale_2", np.inf, "has scales that are negative, infinity or NaN"),
    ],
)
def test_scales_that_are_none_are_refused(tmp_path, part, value, problem):
    make_checkpoint(tmp_path, "llama", **WIDE)
    quantize(tmp_path, MODELOPT)
    tensors = load_file(tmp_path / "model.safetensors")
    name = f"{Q}.{part}"
    tensors[name] = torch.full(tensors[name].shape, value).to(tensors[name].dtype)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=problem):
        load_checkpoint(tmp_path).tensors.read(f"{Q}.weight")


@pytest.mark.parametrize("part", ["weight_scale", "weight_scale_2"])
def test_a_scale_of_another_shape_is_refused(tmp_path, part):
    make_checkpoint(tmp_path, "llama", **WIDE)
    quantize(tmp_path, MODELOPT)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{Q}.{part}"] = torch.ones(3, 3).to(tensors[f"{Q}.{part}"].dtype)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"has shape \[3, 3\], its matrix asks for"):
        load_checkpoint(tmp_path)


def test_other_algorithms_of_modelopt_are_refused(tmp_path):
    make_checkpoint(tmp_path, "llama", **WIDE)
    edit_json(tmp_path / "config.json", quantization_config=MODELOPT | {"quant_algo": "W4A8_AWQ"})
    with pytest.raises(UnsupportedModelError, match=r"quant_algo.*W4A8_AWQ.*use one of NVFP4"):
        load_checkpoint(tmp_path)
