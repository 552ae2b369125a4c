"""Checkpoints that others quantized: their values, their blocks, and what is refused."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from checkpoints import edit_json
from quantized import Format, config, quantize
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models import load_checkpoint

Q = "model.layers.0.self_attn.q_proj"
PACK = {"kind": "pack-quantized"}

IN_BLOCKS = {
    "gptq": Format("gptq", 4, 32),
    "gptq-v2-asymmetric": Format("gptq", 4, 32, symmetric=False, kind="gptq_v2"),
    "gptq-asymmetric": Format("gptq", 4, 16, symmetric=False),
    "gptq-8-bits-whole-rows": Format("gptq", 8, None),
    "gptq-8-bits-asymmetric": Format("gptq", 8, 32, symmetric=False),
    "gptq-groups-in-another-order": Format("gptq", 4, 32, symmetric=False, order="blocks"),
    "awq": Format("awq", 4, 32, symmetric=False),
    "awq-whole-rows": Format("awq", 4, None, symmetric=False),
    "packed": Format("compressed-tensors", 4, 32, **PACK),
    "packed-asymmetric": Format("compressed-tensors", 4, 32, symmetric=False, **PACK),
    "packed-8-bits": Format("compressed-tensors", 8, None, half=False, **PACK),
    "int8": Format("compressed-tensors", 8, None, kind="int-quantized"),
    "int8-asymmetric": Format("compressed-tensors", 8, 32, symmetric=False, kind="int-quantized"),
}
SCATTERED = {
    "gptq-act-order": Format("gptq", 4, 32, symmetric=False, order="scattered"),
    "packed-act-order": Format("compressed-tensors", 4, 32, order="scattered", **PACK),
    "fp8-blocks": Format("fp8", 0, 48, kind="block"),
    "fp8-whole": Format("fp8", 0, None),
    "float-quantized": Format("compressed-tensors", 0, None, kind="row"),
}
FORMATS = IN_BLOCKS | SCATTERED


@pytest.fixture
def source(saved_checkpoint):
    return saved_checkpoint("llama")


def written(source, folder, form):
    """Writes a checkpoint; returns its matrices, and its tensors as edgespec reads them."""
    found = quantize(source, folder, form)
    if form.kind == "row":
        edit_json(
            folder / "config.json", quantization_config=config(form) | {"format": "float-quantized"}
        )
    return found, load_checkpoint(folder).tensors


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_those_of_the_definition(name, source, tmp_path):
    matrices, tensors = written(source, tmp_path / "made", FORMATS[name])
    for key, (values, _) in matrices.items():
        assert np.array_equal(tensors.read(key), values), key
        assert tensors.shape(key) == values.shape
    plain = load_checkpoint(source).tensors
    assert tensors.names == plain.names


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_read_from_anywhere(name, source, tmp_path):
    matrices, tensors = written(source, tmp_path / "made", FORMATS[name])
    for key, (values, _) in matrices.items():
        for start, stop in ((0, 1), (3, 5), (7, 9), (8, 24), (len(values) - 5, len(values))):
            assert np.array_equal(tensors.read_rows(key, start, stop), values[start:stop]), key
        for start, stop in ((0, 0), (-1, 3), (1, len(values) + 1)):
            with pytest.raises(ValueError, match=f"rows {start}:{stop}"):
                tensors.read_rows(key, start, stop)


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_blocks_are_those_of_the_file(name, source, tmp_path):
    form = FORMATS[name]
    matrices, tensors = written(source, tmp_path / "made", form)
    for key, (_, matrix) in matrices.items():
        rows, width = matrix.levels.shape
        size = form.size or width
        held = tensors.blocks(key)
        assert (held.bits, held.size) == (form.bits, size)
        order = matrix.groups[::size]
        for start, stop in ((0, rows), (5, 13)):
            found = tensors.read_blocks(key, start, stop)
            assert np.array_equal(found.levels, matrix.levels[start:stop])
            assert np.array_equal(found.scales, matrix.scales[start:stop, order])
            zeros = np.full(found.scales.shape, 2 ** (form.bits - 1))
            zeros = zeros if found.zeros is None else found.zeros
            assert np.array_equal(zeros, matrix.zeros[start:stop, order])
        assert tensors.encoding(key) is None
        with pytest.raises(ValueError, match="has no encoding: several tensors make it up"):
            tensors.read_encoded(key, 0, 1)


@pytest.mark.parametrize("name", SCATTERED)
def test_what_has_no_blocks_says_so(name, source, tmp_path):
    matrices, tensors = written(source, tmp_path / "made", FORMATS[name])
    for key in matrices:
        assert tensors.blocks(key) is None
        with pytest.raises(ValueError, match="not in blocks"):
            tensors.read_blocks(key, 0, 1)


@pytest.mark.parametrize("name", ["fp8-blocks", "gptq", "packed"])
def test_experts_with_names_of_their_own_are_read(name, saved_checkpoint, tmp_path):
    """As Qwen3-30B-A3B-FP8 has them."""
    source = saved_checkpoint("qwen3_moe")
    matrices, tensors = written(source, tmp_path / "made", FORMATS[name])
    expert = "model.layers.1.mlp.experts.7.down_proj.weight"
    assert expert in matrices
    for key, (values, _) in matrices.items():
        assert np.array_equal(tensors.read(key), values), key
    assert (tensors.blocks(expert) is None) == (name == "fp8-blocks")


@pytest.mark.parametrize("architecture", ["gpt_oss", "qwen3_moe"])
@pytest.mark.parametrize("form", [FORMATS["fp8-blocks"], FORMATS["float-quantized"]])
def test_experts_in_one_tensor_of_8_bit_floats_are_refused(
    architecture, form, saved_checkpoint, tmp_path
):
    shutil.copytree(saved_checkpoint(architecture), tmp_path / "made")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    file = tmp_path / "made" / "model.safetensors"
    stack = torch.zeros(8, 64, 192, dtype=torch.float8_e4m3fn)
    save_file({**load_file(file), name: stack}, file, {"format": "pt"})
    edit_json(
        tmp_path / "made" / "config.json",
        quantization_config={**config(form), "format": "float-quantized"},
    )
    with pytest.raises(UnsupportedModelError, match=rf"{name} has shape \[8, 64, 192\] in 8-bit"):
        load_checkpoint(tmp_path / "made")


def test_matrices_that_were_left_out_are_read_as_they_are(source, tmp_path):
    matrices, _ = written(source, tmp_path / "made", FORMATS["gptq"])
    file = tmp_path / "made" / "model.safetensors"
    tensors = load_file(file)
    plain = load_file(source / "model.safetensors")
    for part in ("qweight", "qzeros", "scales", "g_idx"):
        del tensors[f"{Q}.{part}"]
    tensors[f"{Q}.weight"] = plain[f"{Q}.weight"]
    save_file(tensors, file)
    found = load_checkpoint(tmp_path / "made").tensors
    assert found.blocks(f"{Q}.weight") is None
    assert found.encoding(f"{Q}.weight") == "f32"
    held = found.read_encoded(f"{Q}.weight", 2, 9).view(np.float32)
    assert np.array_equal(held, plain[f"{Q}.weight"][2:9].numpy())
    assert np.array_equal(found.read(f"{Q}.weight"), plain[f"{Q}.weight"].numpy())
    other = Q.replace("q_proj", "k_proj") + ".weight"
    assert np.array_equal(found.read(other), matrices[other][0])


def test_the_config_of_early_gptq_files(source, tmp_path):
    matrices, _ = written(source, tmp_path / "made", FORMATS["gptq"])
    edit_json(tmp_path / "made" / "config.json", quantization_config=None)
    own = tmp_path / "made" / "quantize_config.json"
    own.write_text("{}")
    edit_json(own, bits=4, group_size=32, desc_act=False, sym=True)
    found = load_checkpoint(tmp_path / "made")
    assert found.quantization == "gptq"
    assert np.array_equal(found.tensors.read(f"{Q}.weight"), matrices[f"{Q}.weight"][0])


def test_fp8_in_blocks_equals_transformers(source, tmp_path):
    _, tensors = written(source, tmp_path / "made", Format("fp8", 0, 8, kind="block"))
    stored = load_file(tmp_path / "made" / "model.safetensors")
    scales = f"{Q}.weight_scale_inv"
    parts = {f"{Q}.weight": [stored[f"{Q}.weight"]], scales: [stored[scales]]}
    expected = Fp8Dequantize(None).convert(parts)[f"{Q}.weight"][0]
    assert expected.dtype == torch.float32
    assert np.array_equal(tensors.read(f"{Q}.weight"), expected.numpy())


def changed(folder, name, change):
    """Replaces a tensor of a checkpoint's file; None removes it."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensor = change(tensors.pop(name))
    if tensor is not None:
        tensors[name] = tensor.contiguous()
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("name", "part", "change", "words"),
    [
        ("gptq", "scales", lambda t: None, "has no tensor .*scales"),
        ("gptq", "scales", lambda t: t[:1], r"scales has shape \[1, 96\], .*\[2, 96\]"),
        ("gptq", "qzeros", lambda t: t[:, :3], r"qzeros has shape \[2, 3\], .*\[2, 12\]"),
        ("gptq", "qweight", lambda t: t[0], r"qweight has dtype I32 and shape \[96\]"),
        ("gptq", "qweight", lambda t: t.to(torch.int64), "qweight has dtype I64"),
        ("gptq", "qweight", lambda t: t[:4], r"qzeros has shape \[2, 12\], .*\[1, 12\]"),
        ("gptq", "qweight", lambda t: t[:0], r"qweight has dtype I32 and shape \[0, 96\]"),
        ("packed", "weight_packed", lambda t: t[:, :0], r"weight_packed has dtype I32 and shape"),
        ("packed", "weight_shape", lambda t: t * 0, "has 8 words for 0 weights"),
        ("packed", "weight_shape", lambda t: -t, "has 8 words for -64 weights"),
        ("packed", "weight_shape", lambda t: t // t * 64, r"weight_packed has shape \[96, 8\]"),
        ("int8", "weight", lambda t: t[:0], r"q_proj.weight has dtype I8 and shape \[0, 64\]"),
        ("fp8-blocks", "weight", lambda t: t[:0], r"weight_scale_inv has shape"),
        ("gptq", "g_idx", lambda t: t[:5], r"g_idx has shape \[5\], .*\[64\]"),
        ("gptq", "g_idx", lambda t: t + 1, "g_idx has numbers from 1 to 2, but there are 2 groups"),
        ("gptq", "g_idx", lambda t: t.float(), "g_idx has dtype F32"),
        ("awq", "qzeros", lambda t: None, "has no tensor .*qzeros"),
        ("awq", "qzeros", lambda t: t[:1], r"qzeros has shape \[1, 12\], .*\[2, 12\]"),
        ("awq", "scales", lambda t: t.T, r"scales has shape \[96, 2\], .*\[2, 96\]"),
        ("packed", "weight_scale", lambda t: None, "has no tensor .*weight_scale"),
        ("packed", "weight_scale", lambda t: t[:, :1].repeat(1, 4), r"shape \[96, 4\]"),
        ("packed", "weight_shape", lambda t: t[:1], r"weight_shape has shape \[1\]"),
        ("packed", "weight_packed", lambda t: t[:, :3], "has 3 words for 64 weights"),
        ("packed", "weight_packed", lambda t: t[:5], r"weight_packed has shape \[5, 8\]"),
        ("packed-asymmetric", "weight_zero_point", lambda t: t[:2], r"shape \[2, 2\]"),
        ("int8", "weight_scale", lambda t: t[:9], r"weight_scale has shape \[9, 1\]"),
        ("fp8-blocks", "weight_scale_inv", lambda t: None, "q_proj.weight_scale_inv is missing"),
        ("fp8-blocks", "weight_scale_inv", lambda t: t[:1], r"weight_scale_inv has shape \[1, 2\]"),
    ],
)
def test_damaged_files_give_one_clear_line(name, part, change, words, source, tmp_path):
    written(source, tmp_path / "made", FORMATS[name])
    changed(tmp_path / "made", f"{Q}.{part}", change)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words) as error:
        load_checkpoint(tmp_path / "made")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("gptq", {"bits": 3}, "bits=3"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
        ("gptq", {"dynamic": {"+:q_proj": {"bits": 8}}}, "dynamic="),
        ("gptq", {"quant_method": "hqq"}, "quant_method='hqq'"),
        ("gptq", {"quant_method": None}, "quant_method=.absent."),
        ("awq", {"version": "gemv"}, "version='gemv'"),
        ("awq", {"bits": 8}, "bits=8"),
        ("packed", {"format": "mxfp4-pack-quantized"}, "format='mxfp4-pack-quantized'"),
        ("packed", {"format": "marlin-24"}, "format='marlin-24'"),
        ("packed", {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config="),
        ("packed", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
    ],
)
def test_what_cannot_be_read_is_refused_by_field_and_value(name, changes, words, source, tmp_path):
    form = FORMATS[name]
    written(source, tmp_path / "made", form)
    edit_json(tmp_path / "made" / "config.json", quantization_config=config(form) | changes)
    with pytest.raises(UnsupportedModelError, match=words) as error:
        load_checkpoint(tmp_path / "made")
    assert "use " in str(error.value)


def test_a_matrix_of_another_size_than_the_config(source, tmp_path):
    written(source, tmp_path / "made", FORMATS["gptq"])
    other = Q.replace("q_proj", "o_proj")
    tensors = load_file(tmp_path / "made" / "model.safetensors")
    for part in ("qweight", "qzeros", "scales", "g_idx"):
        tensors[f"{Q}.{part}"] = tensors[f"{other}.{part}"].clone()
    save_file(tensors, tmp_path / "made" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"q_proj\.weight has shape \[64, 96\]"):
        load_checkpoint(tmp_path / "made")


def test_shards(source, tmp_path):
    matrices, _ = written(source, tmp_path / "made", FORMATS["awq"])
    folder = tmp_path / "made"
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    files = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-{number}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        files |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text("{}")
    edit_json(index, weight_map=files)
    found = load_checkpoint(folder).tensors
    assert np.array_equal(found.read(f"{Q}.weight"), matrices[f"{Q}.weight"][0])
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        found.read(f"{Q}.weight")
