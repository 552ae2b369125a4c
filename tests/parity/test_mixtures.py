"""Mixtures of experts: how files hold them, what a bundle says of them, and their precisions."""

from __future__ import annotations

from shutil import copytree

import numpy as np
import pytest
import torch
from checkpoints import edit_json, make_checkpoint
from gguf import GGMLQuantizationType, quants
from nodes import needs_library
from parity import PROMPT, SAME, distance, logits_of_bundle, reference
from safetensors.numpy import load_file, save_file

from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.export import ExportOptions, RoundedMatrices, Texts, calibrate
from edgespec.export.formats.rounding import rounded
from edgespec.export.formats.tiles import tile_weights
from edgespec.models import Moe, load_checkpoint
from edgespec.tuning.calibrating import opener

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]  # by its four bits
TEXTS = np.random.default_rng(1).integers(331, size=(3, 24)).tolist()


def as_mxfp4(folder, model):
    """Stores the experts of a gpt-oss checkpoint as published ones do; `model` gets the values."""
    rng = np.random.default_rng(3)
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    parameters = dict(model.named_parameters())
    for name in [each for each in tensors if each.endswith(("gate_up_proj", "down_proj"))]:
        experts, width, rows = tensors.pop(name).shape
        numbers = rng.integers(0, 16, (experts, rows, width), np.uint8)
        exponents = rng.integers(120, 126, (experts, rows, width // 32), np.uint8)
        packed = numbers[..., 0::2] | numbers[..., 1::2] << 4
        tensors[f"{name}_blocks"] = packed.reshape(experts, rows, width // 32, 16)
        tensors[f"{name}_scales"] = exponents
        values = np.array(E2M1)[numbers] * np.repeat(2.0 ** (exponents - 127.0), 32, axis=2)
        with torch.no_grad():
            parameters[name].copy_(torch.from_numpy(values.transpose(0, 2, 1)))
    save_file(tensors, weights, {"format": "pt"})
    edit_json(folder / "config.json", quantization_config={"quant_method": "mxfp4"})


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A gpt-oss checkpoint in MXFP4, and transformers' model of the same values."""
    folder = tmp_path_factory.mktemp("mxfp4")
    model = make_checkpoint(folder, "gpt_oss")
    as_mxfp4(folder, model)
    return folder, model


@needs_library
def test_mxfp4_is_read_as_it_is(published, tmp_path):
    folder, model = published
    export.make(folder, tmp_path / "bundle", options=ExportOptions("fp32"))
    found = logits_of_bundle(tmp_path / "bundle", PROMPT[:50])[-1]
    assert distance(found, reference(model, PROMPT[:50])) < SAME


def test_bundles_keep_the_numbers_of_mxfp4(published, tmp_path):
    folder, _ = published
    export.make(folder, tmp_path / "bundle")
    native = bundles.load(tmp_path / "bundle").target.native
    experts = [each for each in load_checkpoint(folder).decoder.sublayers if isinstance(each, Moe)]
    sizes = [each.in_features * each.out_features for moe in experts for each in moe.linears]
    assert native.formats["mxfp4"] == sum(sizes)


@pytest.mark.parametrize(
    "architecture", ["glm4_moe", "glm4_moe_lite", "mistral4", "qwen3_5_moe_text"]
)
def test_experts_may_lie_in_stacks(tmp_path, architecture):
    """As published files hold them, and not as transformers saves them."""
    make_checkpoint(tmp_path, architecture)
    original = load_checkpoint(tmp_path)
    file = tmp_path / "model.safetensors"
    expected = {name: original.tensors.read(name) for name in original.decoder.tensors()}
    tensors = load_file(file)
    layers = range(len(original.decoder.layers))
    names = (f"model.layers.{layer}.mlp.experts" for layer in layers)
    for name in (each for each in names if f"{each}.0.down_proj.weight" in tensors):
        for kinds, stack in ((("gate", "up"), "gate_up_proj"), (("down",), "down_proj")):
            own = [
                np.concatenate([tensors.pop(f"{name}.{n}.{kind}_proj.weight") for kind in kinds])
                for n in range(8)
            ]
            tensors[f"{name}.{stack}"] = np.stack(own)
    save_file(tensors, file, {"format": "pt"})
    found = load_checkpoint(tmp_path)
    assert found.decoder.layers == original.decoder.layers
    for name, values in expected.items():
        np.testing.assert_array_equal(found.tensors.read(name), values)


@needs_library
@pytest.mark.parametrize("architecture", ["glm4_moe_lite", "qwen3_5_moe_text"])
def test_matrices_of_all_experts_or_heads_get_8_bits_together(tmp_path, cli, architecture):
    model = make_checkpoint(tmp_path / "checkpoint", architecture)
    in_8_bits = "--lm-head-precision", "int8"
    done = cli("export", tmp_path / "checkpoint", "-o", tmp_path / "bundle", *in_8_bits)
    assert done.code == 0, done.err
    formats = bundles.load(tmp_path / "bundle").target.native.formats
    assert formats.keys() - {"f32", "q5_0"} <= {"q8_0", "q4_k", "q6_k"}
    assert "q8_0" in formats
    found = logits_of_bundle(tmp_path / "bundle", PROMPT[:50])[-1]
    # In 8 bits it is 0.06: three bits fewer are eight times as coarse.
    assert distance(found, reference(model, PROMPT[:50])) < 0.8


def test_rows_of_an_expert_are_the_same_however_many_are_read(published):
    tensors = load_checkpoint(published[0]).tensors
    name = "model.layers.1.mlp.experts.5.up_proj.weight"
    whole = tensors.read(name)
    assert whole.shape == tensors.shape(name) == (160, 64)
    np.testing.assert_array_equal(tensors.read_rows(name, 7, 20), whole[7:20])
    with pytest.raises(ValueError, match="which has 160"):
        tensors.read_rows(name, 100, 161)
    assert tensors.encoding(name) == "mxfp4"
    held = quants.dequantize(tensors.read_encoded(name, 7, 20), GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(held, whole[7:20])
    bias = name.replace("weight", "bias")
    assert tensors.encoding(bias) is None
    with pytest.raises(ValueError, match="has no encoding: it is part of a stack"):
        tensors.read_encoded(bias, 0, 1)
    router = "model.layers.1.mlp.router.weight"
    held = tensors.read_encoded(router, 1, 3).view(np.float32)
    np.testing.assert_array_equal(held, tensors.read(router)[1:3])


def test_other_stacks_are_refused_by_name(published, tmp_path):
    model = make_checkpoint(tmp_path, "gpt_oss")
    as_mxfp4(tmp_path, model)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    scales = "model.layers.0.mlp.experts.down_proj_scales"
    save_file({**tensors, scales: tensors[scales][:, :, :-1].copy()}, weights)
    with pytest.raises(CheckpointError, match=r"down_proj_scales has shape \[8, 64, 4\], config"):
        load_checkpoint(tmp_path)
    save_file({**tensors, scales: tensors[scales].astype(np.float32)}, weights)
    with pytest.raises(UnsupportedModelError, match=r"F32, which is not supported: .* in bytes"):
        load_checkpoint(tmp_path)
    edit_json(tmp_path / "config.json", quantization_config={"quant_method": "mxfp9"})
    with pytest.raises(UnsupportedModelError, match="quant_method='mxfp9'"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "field", "value", "message"),
    [
        ("qwen3_moe", "num_experts_per_tok", 9, "must be at most num_local_experts=8"),
        ("qwen3_moe", "mlp_only_layers", 1, "must be a list of layers"),
        ("qwen3_moe", "decoder_sparse_step", 0, "must be a positive integer"),
        ("olmoe", "clip_qkv", 8.0, "is not supported: use a model without clipped"),
        ("granitemoe", "residual_multiplier", 0, "must be a positive number"),
        ("gpt_oss", "swiglu_limit", -1, "must be a positive number"),
    ],
)
def test_what_a_config_may_not_ask_for(
    saved_checkpoint, tmp_path, architecture, field, value, message
):
    folder = copytree(saved_checkpoint(architecture), tmp_path / "copy")
    edit_json(folder / "config.json", **{field: value})
    with pytest.raises((CheckpointError, UnsupportedModelError), match=f"{field}=.*{message}"):
        load_checkpoint(folder)


@needs_library
@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
@pytest.mark.parametrize(("mixture", "dense"), [("qwen3_moe", "qwen3"), ("granitemoe", "granite")])
def test_quantized_experts_are_as_near_as_a_dense_mlp(tmp_path, mixture, dense, precision):
    def apart(architecture):
        folder = tmp_path / architecture
        model = make_checkpoint(folder, architecture)
        export.make(folder, folder / "bundle", options=ExportOptions(precision))
        found = logits_of_bundle(folder / "bundle", PROMPT[:12])
        return [distance(row, reference(model, PROMPT[: i + 1])) for i, row in enumerate(found)]

    assert np.median(apart(mixture)) < 1.5 * np.median(apart(dense))


def test_the_manifest_says_what_a_row_reads(saved_checkpoint, tmp_path):
    source = saved_checkpoint("qwen3_moe", decoder_sparse_step=2)
    export.make(source, tmp_path / "bundle", options=ExportOptions("int4"))
    target = bundles.load(tmp_path / "bundle").target
    dense, mixture = (each for each in target.layout if each.kind == "mlp")
    assert (dense.width, dense.experts, dense.chosen) == (160, 0, 0)
    assert (mixture.width, mixture.experts, mixture.chosen) == (96, 8, 3)
    expert = 3 * 64 * 96
    assert target.parameters - target.active_parameters == (8 - 3) * expert


def test_experts_without_gates_that_read_narrow_rows_are_smaller(saved_checkpoint, tmp_path):
    source = saved_checkpoint("nemotron_h_moe", moe_latent_size=32)
    export.make(source, tmp_path / "bundle", options=ExportOptions("int4"))
    target = bundles.load(tmp_path / "bundle").target
    assert target.parameters - target.active_parameters == 2 * (8 - 3) * 2 * 32 * 96
    assert [each.beside for each in target.layout if each.experts] == [128, 128]


@pytest.mark.parametrize("architecture", ["gpt_oss", "granitemoe"])
def test_experts_are_rounded_by_the_rows_that_choose_them(saved_checkpoint, tmp_path, architecture):
    checkpoint = load_checkpoint(saved_checkpoint(architecture, num_experts_per_tok=1))
    mixtures = [each for each in checkpoint.decoder.sublayers if isinstance(each, Moe)]
    names = {layer.weight for each in mixtures for layer in each.linears}
    routers = {each.router.weight for each in mixtures}
    one = Texts(*([text[:8]] for text in TEXTS[:2]))
    linears = [each.weight for part in checkpoint.decoder.sublayers for each in part.linears]
    with RoundedMatrices(tmp_path, dict.fromkeys(linears, "q4_0")) as kept:
        found = calibrate(checkpoint, one, kept, opener())
        assert names <= set(kept) == set(found.damage)
        assert not routers & set(kept)
        unlike, unread = 0, 0
        for name in names:
            weights = checkpoint.tensors.read(name)
            same = np.array_equal(rounded("q4_0", weights).tiles, kept[name].tiles)
            unlike = unlike + (not same)
            unread = unread + same
            found = tile_weights("q4_0", kept[name].tiles, *weights.shape)
            assert distance(found, weights) < 0.2
        assert unread >= 3  # eight rows cannot choose all experts of both layers
        assert unlike >= 3
