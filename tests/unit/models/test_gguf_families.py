"""What is special in the GGUF files of some families: experts, states, angles, and refusals."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
from checkpoints import make_checkpoint
from gguf import GGMLQuantizationType, quants
from ggufs import write_gguf

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models import load_checkpoint
from edgespec.models.formats.tensors import block_weights

STATES = {
    "num_hidden_layers": 4, "layer_types": None, "linear_num_key_heads": 2,
    "linear_num_value_heads": 6, "linear_value_head_dim": 32,
}  # fmt: skip
EXPERT = "model.layers.1.mlp.experts.5"


@pytest.fixture
def files(tmp_path):
    """Make a checkpoint's folder and its GGUF file."""

    def make(architecture, encoding="F32", fields=None, extra=None, **overrides):
        folder = tmp_path / "folder"
        file = tmp_path / "file.gguf"
        make_checkpoint(folder, architecture, **overrides)
        write_gguf(folder, file, encoding, extra=extra, **(fields or {}))
        return folder, file

    return make


def equal_models(folder, file):
    original = load_checkpoint(folder)
    found = load_checkpoint(file)
    assert replace(found.decoder, ropes={}) == replace(original.decoder, ropes={})
    for name, rope in original.decoder.ropes.items():
        other = found.decoder.ropes[name]
        np.testing.assert_allclose(other.inv_freq, rope.inv_freq, rtol=1e-6)
        assert other.attention_factor == pytest.approx(rope.attention_factor)
    return original, found


@pytest.mark.parametrize("encoding", ["Q4_0", "Q8_0", "MXFP4", "Q5_1"])
def test_an_expert_is_a_part_of_its_stack(files, encoding):
    _, file = files("qwen3_moe", encoding)
    tensors = load_checkpoint(file).tensors
    stacks = {each.name: each for each in gguf.GGUFReader(file).tensors}
    for part in ("gate", "up", "down"):
        stack = stacks[f"blk.1.ffn_{part}_exps.weight"]
        expected = quants.dequantize(stack.data, GGMLQuantizationType[encoding])[5]
        name = f"{EXPERT}.{part}_proj.weight"
        np.testing.assert_array_equal(tensors.read(name), expected)
        np.testing.assert_array_equal(tensors.read_rows(name, 7, 20), expected[7:20])
        assert tensors.encoding(name) == encoding.lower()
        held = tensors.read_encoded(name, 7, 20)
        np.testing.assert_array_equal(held, stack.data[5, 7:20].reshape(held.shape))
        blocks = tensors.blocks(name)
        assert (blocks is not None) == (encoding in ("Q4_0", "Q8_0"))
        if blocks is not None:
            rows = tensors.read_blocks(name, 7, 20)
            np.testing.assert_array_equal(block_weights(rows, blocks), expected[7:20])


def test_experts_of_gpt_oss_in_mxfp4_have_their_biases(files):
    folder, file = files("gpt_oss", "MXFP4")
    original = load_checkpoint(folder)
    found = load_checkpoint(file)
    assert found.quantization == "MXFP4"
    for part in ("gate", "up", "down"):
        name = f"{EXPERT}.{part}_proj"
        bias = original.tensors.read(f"{name}.bias")
        np.testing.assert_array_equal(found.tensors.read(f"{name}.bias"), bias)
        assert found.tensors.encoding(f"{name}.bias") is None
        weight = original.tensors.read(f"{name}.weight")
        error = found.tensors.read(f"{name}.weight") - weight
        assert 0 < np.linalg.norm(error) < 0.2 * np.linalg.norm(weight)


@pytest.mark.parametrize("size", [32, 16])
def test_columns_in_another_order_stay_in_blocks_if_whole_blocks_move(files, size):
    sizes = {**STATES, "linear_value_head_dim": size}
    folder, file = files("qwen3_5_text", "Q8_0", **sizes)
    original = load_checkpoint(folder).tensors
    found = load_checkpoint(file).tensors
    name = "model.layers.1.linear_attn.out_proj.weight"
    values = original.read(name)
    read = found.read(name)
    blocks = found.blocks(name)
    assert (blocks is not None) == (size == 32)
    if blocks is None:
        np.testing.assert_allclose(read, values, atol=np.abs(values).max() / 100)
        assert found.encoding(name) is None
        with pytest.raises(ValueError, match="columns in an order that splits blocks of Q8_0"):
            found.read_encoded(name, 0, 1)
        return
    encoding = GGMLQuantizationType.Q8_0
    assert found.encoding(name) == "q8_0"
    held = quants.dequantize(found.read_encoded(name, 3, 9), encoding)
    np.testing.assert_array_equal(held, read[3:9])
    np.testing.assert_array_equal(
        read, quants.dequantize(quants.quantize(values, encoding), encoding)
    )
    np.testing.assert_array_equal(block_weights(found.read_blocks(name, 3, 9), blocks), read[3:9])


def test_columns_of_plain_numbers_may_be_in_any_order(files):
    _, file = files("qwen3_5_text", "F16", **{**STATES, "linear_value_head_dim": 16})
    found = load_checkpoint(file).tensors
    name = "model.layers.1.linear_attn.out_proj.weight"
    assert found.encoding(name) == "f16"
    np.testing.assert_array_equal(found.read_encoded(name, 3, 9).view("<f2"), found.read(name)[3:9])
    assert found.encoding("model.layers.1.linear_attn.conv1d.weight") is None


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
    "short_factor": [1.0 + n / 8 for n in range(6)], "long_factor": [2.0 + n for n in range(6)],
}  # fmt: skip
LONG = np.array(LONGROPE["long_factor"], np.float32)


def test_angles_of_partly_rotated_heads_by_longrope(files):
    equal_models(
        *files(
            "phi3",
            extra={
                "rope_factors_long.weight": LONG,
                "rope_factors_short.weight": np.array(LONGROPE["short_factor"], np.float32),
            },
            rope_parameters=LONGROPE,
            original_max_position_embeddings=128,
            hidden_size=96,  # a head's size for transformers' check of the lists
        )
    )


def test_angles_of_minicpm_3_by_longrope(files):
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 512,
        "short_factor": [1 + n / 8 for n in range(16)],
        "long_factor": [1.0] * 16,
    }
    original, _ = equal_models(*files("minicpm3", num_key_value_heads=4, rope_parameters=rope))
    assert original.decoder.ropes["default"].attention_factor == 1


def test_a_window_of_phi_3(files):
    equal_models(*files("phi3", sliding_window=40))


def test_a_stretched_base_of_hunyuan(files):
    scaled = 10_000.0 * 50.0 ** (24 / 22)
    alpha = {"rope_type": "dynamic", "rope_theta": 10_000.0, "alpha": 50.0, "factor": 1.0}
    fields = {"hunyuan-dense.rope.freq_base": scaled, "hunyuan-dense.rope.scaling.type": "none"}
    equal_models(*files("hunyuan_v1_dense", fields=fields, rope_parameters=alpha))


def test_exaone_4_without_windows(files):
    sizes = {"sliding_window": None, "layer_types": ["full_attention"] * 2}
    equal_models(*files("exaone4", **sizes))


def test_biases_of_stablelm(files):
    equal_models(*files("stablelm", use_qkv_bias=True))


def test_deepseeks_first_files_do_not_say_how_experts_are_chosen(files):
    untold = {"deepseek2.expert_gating_func": None}
    original, _ = equal_models(*files("deepseek_v2", fields=untold))
    assert original.config.model_type == "deepseek_v2"


def test_ministral_without_scaled_angles(files):
    rope = {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": None}
    rope["mscale_all_dim"] = None
    equal_models(*files("ministral3", rope_parameters=rope))


BESIDE_EXPERTS = {
    "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 96,
    "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
}  # fmt: skip


def test_experts_of_gemma_4_lie_gate_above_up(files):
    original, found = equal_models(*files("gemma4_text", **BESIDE_EXPERTS))
    assert found.tensors.names == original.decoder.tensors().keys()
    for name in original.decoder.tensors():
        np.testing.assert_array_equal(found.tensors.read(name), original.tensors.read(name))


def test_experts_and_attention_alone_of_granite_4(files):
    equal_models(*files("granitemoehybrid", num_local_experts=8, num_experts_per_tok=3))
    both = {"num_hidden_layers": 2, "layer_types": ["attention"] * 2, "intermediate_size": 96}
    equal_models(*files("granitemoehybrid", **both, position_embedding_type="rope"))


RECURRENT = "qwen35.attention.recurrent_layers"


@pytest.mark.parametrize(
    "fields",
    [
        {RECURRENT: [True, True, True, False, False]},
        {RECURRENT: None, "qwen35.full_attention_interval": 4},
        {RECURRENT: None},  # as the first files
    ],
)
def test_layers_that_only_draft_are_no_layers(files, fields):
    drafting = {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    equal_models(*files("qwen3_5_text", fields=drafting | fields, **STATES))


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("glm4_moe_lite", {"deepseek2.expert_gating_func": None}, "gating_func=.absent. is not"),
        ("granite", {"granite.rope.scaling.finetuned": False}, "finetuned=False is not supported"),
        ("granitemoehybrid", {"granitehybrid.ssm.inner_size": 130}, "multiple of embedding_length"),
        ("granitemoehybrid", {"granitehybrid.ssm.group_count": 3}, "no multiple of 3 groups"),
        ("granitemoehybrid", {"granitehybrid.ssm.state_size": 2**30}, "has shape .* asks for"),
        ("gemma4_text", {"gemma4.rope.dimension_count_swa": 8}, "use a file where it is 24"),
        ("gemma4_text", {"gemma4.attention.sliding_window_pattern": [True]}, "list of 4 layers"),
        ("gemma4_text", {"gemma4.feed_forward_length": [160, 0]}, "must be a list of 4 numbers"),
        ("glm4", {"glm4.rope.dimension_sections": [2, 2, 2, 0]}, "sections=.* is not supported"),
        ("kimi_linear", {"kimi-linear.expert_gating_func": 1}, "gating_func=1 is not supported"),
        ("kimi_linear", {"kimi-linear.kda.head_dim": 2**30}, "linear_head_dim=.* must be 65536 or"),
        ("kimi_linear", {"kimi-linear.kda.head_dim": 16}, "has shape .* asks for"),
        ("lfm2", {"lfm2.attention.head_count_kv": [0, 2, 3]}, "must be a list of 3 equal numbers"),
        ("lfm2", {"lfm2.attention.head_count_kv": [0, 2]}, "must be a list of 3 equal numbers"),
        ("lfm2", {"lfm2.attention.head_count_kv": [0, 0, 0]}, "must be a list of 3 equal"),
        ("nemotron_h", {"nemotron_h.ssm.inner_size": 73}, "multiple of ssm.time_step_rank=6"),
        ("nemotron_h", {"nemotron_h.feed_forward_length": [0] * 5}, "not all of them 0"),
        ("qwen3_5_text", {"qwen35.ssm.group_count": 3}, "must be a multiple of ssm.group_count=3"),
        ("qwen3_5_text", {"qwen35.ssm.inner_size": 33}, "must be a multiple of ssm.time_step"),
        ("qwen3_5_text", {"qwen35.ssm.inner_size": 2**30}, "has shape .* config.json asks for"),
        ("qwen3_5_text", {"qwen35.ssm.state_size": 2**30}, "has shape .* config.json asks for"),
        ("qwen3_5_text", {RECURRENT: [True]}, "layer_types=.* must be a list of 3 layers"),
        ("qwen3_moe", {"qwen3moe.expert_count": 7}, "gate.weight has shape"),
        ("qwen3_moe", {"qwen3moe.expert_feed_forward_length": None}, "length=.absent. must be"),
        ("llama", {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_log_multiplier": 1},
         "yarn_log_multiplier=1 is not supported"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(files, architecture, fields, message):
    _, file = files(architecture, fields=fields)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(file)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize(
    ("architecture", "extra", "message"),
    [
        ("stablelm", "blk.0.attn_q_norm.weight", "qk_layernorm=True is not supported"),
        ("lfm2", "blk.0.shortconv.in_proj.bias", "conv_bias=True is not supported"),
    ],
)
def test_tensors_of_what_is_not_implemented_are_named(files, architecture, extra, message):
    _, file = files(architecture, extra={extra: np.ones((4, 6), np.float32)})
    with pytest.raises(UnsupportedModelError, match=message):
        load_checkpoint(file)
