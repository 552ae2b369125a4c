"""GGUF files: the same model as in the checkpoint that they were made from, tensor by tensor."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
from checkpoints import make_checkpoint
from gguf import GGMLQuantizationType, quants
from ggufs import KINDS, dequantized, write_gguf
from small_configs import WITH_EXPERTS

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.export.formats.gguf_tiles import tiles_of_gguf
from edgespec.export.formats.tiles import tile_weights
from edgespec.models import load_checkpoint
from edgespec.models.formats.gguf.encodings import ENCODINGS
from edgespec.models.formats.tensors import block_weights

WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_key_value_heads": 2}


def equal_ropes(found, expected):
    assert found.keys() == expected.keys()
    for name, rope in found.items():
        np.testing.assert_allclose(rope.inv_freq, expected[name].inv_freq, rtol=1e-6)
        assert rope.attention_factor == pytest.approx(expected[name].attention_factor)


def test_matrices_in_nvfp4_have_the_scale_of_the_whole(tmp_path):
    sizes = {**WIDE, "num_experts": 4, "moe_intermediate_size": 128}
    make_checkpoint(tmp_path / "folder", "qwen3_moe", **sizes)
    factors = {"blk.0.attn_q.scale": [0.37], "blk.1.ffn_up_exps.scale": [3.0, 0.2, 0.7, 1.5]}
    extra = {name: np.array(each, np.float32) for name, each in factors.items()}
    extra["blk.0.attn_q.input_scale"] = np.array([2.0], np.float32)
    write_gguf(tmp_path / "folder", tmp_path / "plain.gguf", "NVFP4")
    write_gguf(tmp_path / "folder", tmp_path / "scaled.gguf", "NVFP4", extra=extra)
    plain, found = (
        load_checkpoint(tmp_path / f"{name}.gguf").tensors for name in ("plain", "scaled")
    )
    assert found.names == plain.names
    scaled = {"model.layers.0.self_attn.q_proj.weight": 0.37}
    for expert, factor in enumerate(factors["blk.1.ffn_up_exps.scale"]):
        scaled[f"model.layers.1.mlp.experts.{expert}.up_proj.weight"] = factor
    for name in found.names:
        factor = scaled.get(name, 1)
        np.testing.assert_allclose(found.read(name), plain.read(name) * factor, rtol=3e-7)
        if name in scaled:
            assert found.encoding(name) == "nvfp4_scaled"
            tiles = tiles_of_gguf("nvfp4_scaled", found.read_encoded(name, 0, 32))
            values = tile_weights("nvfp4", tiles, 32, found.shape(name)[1])
            np.testing.assert_array_equal(values, found.read_rows(name, 0, 32))


@pytest.fixture
def made(tmp_path):
    """Make a checkpoint and its GGUF file; both are opened."""

    def make(architecture, encoding="F32", fields=None, **overrides):
        folder = tmp_path / "folder"
        file = tmp_path / "file.gguf"
        make_checkpoint(folder, architecture, **overrides)
        write_gguf(folder, file, encoding, **(fields or {}))
        return load_checkpoint(folder), load_checkpoint(file)

    return make


MIXED = ["sliding_attention", "full_attention"]
_GEMMA = {"query_pre_attn_scalar": 24, "sliding_window": 40, "num_hidden_layers": 7}
# Numbers that single precision, in which files hold them, has exactly.
_FACTORS = {"attention_multiplier": 0.25, "residual_multiplier": 0.5, "logits_scaling": 0.625}
SIZES = {
    "bitnet": {"hidden_act": "silu"},
    "cohere2": {"num_hidden_layers": 5, "layer_types": None},
    "deepseek_v2": {"num_key_value_heads": 4},
    "falcon_h1": {"embedding_multiplier": 1.0, "lm_head_multiplier": 1.0},
    "exaone4": {"num_hidden_layers": 4, "layer_types": MIXED * 2},
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 0.75, "final_logit_softcapping": 0.875},
    "gemma3_text": _GEMMA,  # seven layers, one of them without a window
    "gemma3n_text": {"final_logit_softcapping": 30.0},
    "gemma4_unified_text": {"num_hidden_layers": 7, "layer_types": None},
    "glm4_moe": {"attention_bias": True},
    "glm4_moe_lite": {"routed_scaling_factor": 1.75, "num_key_value_heads": 4},
    "granite": _FACTORS,
    "granitemoe": _FACTORS,
    "granitemoehybrid": {**_FACTORS, "mamba_n_groups": 2},
    "kimi_linear": {"num_key_value_heads": 4},
    "kimi_linear_moe": {"num_key_value_heads": 4},
    "lfm2": {"num_hidden_layers": 3},
    "lfm2_moe": {"routed_scaling_factor": 1.0},
    "llama4_text": {"num_hidden_layers": 4, "no_rope_layers": None},
    "minicpm": {"num_hidden_layers": 4, "scale_depth": 0.5},
    "minicpm3": {"num_key_value_heads": 4},
    "mistral4": {"num_key_value_heads": 4},
    "nemotron_h": {"layer_norm_epsilon": 1e-5},
    "nemotron_h_moe": {"layer_norm_epsilon": 1e-5, "moe_latent_size": 32},
    "olmo3": {"num_hidden_layers": 4, "layer_types": MIXED * 2},
    "olmoe": {"norm_topk_prob": False},
    "phimoe": {"router_jitter_noise": 0.01},
    "qwen3_5_moe_text": {"linear_num_key_heads": 2, "linear_num_value_heads": 6},
    "qwen3_5_text": {"linear_num_key_heads": 2, "linear_num_value_heads": 6},
    "qwen3_next": {"linear_num_key_heads": 2, "linear_num_value_heads": 6},
    "smollm3": {"no_rope_layers": None, "num_hidden_layers": 7},
}  # fmt: skip
# The last have no output projection.
_NEVER_TIED = (
    "gpt_oss",
    "kimi_linear",
    "kimi_linear_moe",
    "nemotron_h",
    "nemotron_h_moe",
    "olmoe",
)
_ALWAYS_TIED = ("bitnet", "cohere2", "gemma", "gemma2", "lfm2_moe")


def close(name, architecture):
    """How far values may be off that a file does not hold as they were, but larger by 1."""
    if "A_log" in name or architecture == "falcon_h1":
        return 1e-6
    larger = architecture.startswith(("gemma2", "gemma3_", "qwen3_5", "qwen3_next"))
    larger |= architecture == "gemma"
    one_more = larger and "norm" in name
    return 3e-7 if one_more else 0


@pytest.mark.parametrize(
    ("architecture", "tied"),
    [
        (architecture, tied)
        for architecture in sorted({*KINDS, *WITH_EXPERTS})
        for tied in (False, True)
        if architecture not in (_NEVER_TIED if tied else _ALWAYS_TIED)
    ],
)
def test_the_model_is_that_of_the_checkpoint(made, architecture, tied, caplog):
    sizes = {"num_key_value_heads": 2, **SIZES.get(architecture, {})}
    original, found = made(architecture, tie_word_embeddings=tied, **sizes)
    caplog.clear()
    assert replace(found.decoder, ropes={}) == replace(original.decoder, ropes={})
    equal_ropes(found.decoder.ropes, original.decoder.ropes)
    assert found.tensors.names >= original.decoder.tensors().keys()
    for name, shape in original.decoder.tensors().items():
        expected = original.tensors.read(name)
        offset = close(name, architecture)
        np.testing.assert_allclose(found.tensors.read(name), expected, rtol=0, atol=offset)
        start = shape[0] // 3
        middle = slice(start, max(shape[0] // 2, start + 1))
        rows = found.tensors.read_rows(name, middle.start, middle.stop)
        np.testing.assert_allclose(rows, expected[middle], rtol=0, atol=offset)
    unused = found.tensors.names - original.decoder.tensors().keys()
    assert not unused, "files that the converter wrote have nothing else"
    assert found.config.eos_ids == (0,)


def test_biases_of_attention_are_found(made):
    original, found = made("llama", attention_bias=True, mlp_bias=True)
    assert replace(found.decoder, ropes={}) == replace(original.decoder, ropes={})
    for name in original.decoder.tensors():
        np.testing.assert_array_equal(found.tensors.read(name), original.tensors.read(name))


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 256,
}  # fmt: skip


def test_angles_of_llama_3(tmp_path, made):
    original, _ = made("llama", rope_parameters=LLAMA3)
    plain = 500_000.0 ** -(np.arange(0, 24, 2) / 24)
    factors = plain / original.decoder.ropes["default"].inv_freq
    assert factors.max() == pytest.approx(8)
    file = tmp_path / "scaled.gguf"
    write_gguf(tmp_path / "folder", file, extra={"rope_freqs.weight": factors.astype(np.float32)})
    equal_ropes(load_checkpoint(file).decoder.ropes, original.decoder.ropes)


def test_angles_stretched_by_yarn(made):
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 128}
    fields = {f"qwen2.rope.scaling.{name}": value for name, value in scaling.items()}
    original, found = made("qwen2", fields=fields, rope_parameters=yarn)
    equal_ropes(found.decoder.ropes, original.decoder.ropes)


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=lambda each: each.name)
def test_every_encoding_is_read_row_by_row(tmp_path, encoding):
    folder = tmp_path / "folder"
    file = tmp_path / "file.gguf"
    make_checkpoint(folder, "llama", **WIDE)
    stored = GGMLQuantizationType[encoding.name]
    write_gguf(folder, file, encoding.name)
    found = load_checkpoint(file)
    reader = gguf.GGUFReader(file)
    names = {
        "blk.1.ffn_up.weight": "model.layers.1.mlp.up_proj.weight",
        "token_embd.weight": "model.embed_tokens.weight",
    }
    for place, name in names.items():
        (tensor,) = (each for each in reader.tensors if each.name == place)
        expected = dequantized(tensor.data, stored)
        np.testing.assert_array_equal(found.tensors.read(name), expected)
        np.testing.assert_array_equal(found.tensors.read_rows(name, 5, 99), expected[5:99])
        assert found.tensors.encoding(name) == encoding.name.lower()
        held = found.tensors.read_encoded(name, 5, 99)
        assert held.dtype == np.uint8
        np.testing.assert_array_equal(held, tensor.data[5:99].view(np.uint8))
    assert np.isfinite(expected).all()
    assert found.quantization == ("" if encoding.block == 1 else encoding.name)


@pytest.mark.parametrize(("encoding", "bits"), [("Q4_0", 4), ("Q8_0", 8), ("Q4_1", None)])
def test_blocks_of_integers_are_given_as_they_are(made, encoding, bits):
    _, found = made("llama", encoding, **WIDE)
    tensors = found.tensors
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"):
        blocks = tensors.blocks(name)
        if bits is None:
            assert blocks is None
            with pytest.raises(ValueError, match="stored as Q4_1"):
                tensors.read_blocks(name, 0, 1)
            continue
        assert (blocks.bits, blocks.size) == (bits, 32)
        rows = tensors.read_blocks(name, 30, 101)  # part of a head
        assert rows.levels.max() < 2**bits
        exact = tensors.read_rows(name, 30, 101)
        np.testing.assert_array_equal(block_weights(rows, blocks), exact)
    assert tensors.blocks("model.norm.weight") is None


@pytest.mark.parametrize("encoding", ["Q4_K", "Q8_0", "BF16"])
def test_encoded_rows_are_in_the_order_of_transformers(made, encoding):
    """Heads of queries and keys lie in another order in files of Llama."""
    _, found = made("llama", encoding, **WIDE)
    for part, rows in (("q", (10, 90)), ("k", (0, 70)), ("v", (3, 4))):
        name = f"model.layers.1.self_attn.{part}_proj.weight"
        held = found.tensors.read_encoded(name, *rows)
        values = quants.dequantize(held, GGMLQuantizationType[encoding])
        np.testing.assert_array_equal(values, found.tensors.read_rows(name, *rows))


def test_what_is_no_matrix_has_no_encoding(made):
    _, found = made("llama")
    assert found.tensors.encoding("model.norm.weight") is None
    with pytest.raises(ValueError, match=r"model\.norm\.weight is no matrix"):
        found.tensors.read_encoded("model.norm.weight", 0, 1)
    with pytest.raises(ValueError, match="rows 0:332 of"):
        found.tensors.read_encoded("model.embed_tokens.weight", 0, 332)


def test_a_split_model_is_read_from_any_of_its_files(tmp_path):
    folder = tmp_path / "folder"
    file = tmp_path / "m.gguf"
    make_checkpoint(folder, "qwen2")
    write_gguf(folder, file, splits=9)
    files = sorted(tmp_path.glob("m-*.gguf"))
    assert len(files) > 2
    original = load_checkpoint(folder)
    for each in (files[0], files[-1]):
        found = load_checkpoint(each)
        for name in original.decoder.tensors():
            np.testing.assert_array_equal(found.tensors.read(name), original.tensors.read(name))
    files[1].unlink()
    with pytest.raises(CheckpointError, match=rf"{files[1].name} is missing, one of {len(files)}"):
        load_checkpoint(files[0])


def test_an_encoding_that_is_not_read_is_named(tmp_path):
    folder = tmp_path / "folder"
    file = tmp_path / "file.gguf"
    make_checkpoint(folder, "llama", **WIDE)
    write_gguf(folder, file, "Q8_K")
    with pytest.raises(UnsupportedModelError, match=r"stored as Q8_K, which .* use a file with F"):
        load_checkpoint(file)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"general.architecture": "mamba"}, r"general.architecture='mamba' is not supported: use"),
        ({"llama.block_count": None}, r"llama.block_count=\(absent\) must be a positive integer"),
        ({"llama.embedding_length": 128}, r"has shape \[331, 64\], .* asks for \[331, 128\]"),
        ({"llama.attention.head_count_kv": 3}, "num_key_value_heads=3 must divide"),
        ({"llama.attention.value_length": 8}, "value_length=8 is not supported: use a file where"),
        ({"llama.rope.dimension_count": 12}, r"partial_rotary_factor=0.5 is not supported"),
        ({"llama.rope.scaling.type": "su"}, "scaling.type='su' is not supported: use a file"),
        ({"llama.context_length": 1}, "max_position_embeddings=1 must be 2 or more"),
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model='rwkv' is not supported"),
        ({"tokenizer.ggml.pre": "odd"}, "tokenizer.ggml.pre='odd' is not supported: use a file"),
        ({"tokenizer.ggml.pre": None}, r"tokenizer.ggml.pre=\(absent\) is not supported"),
        ({"tokenizer.ggml.tokens": None}, r"tokenizer.ggml.tokens=\(absent\) must be a list"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merges has 'ab' as number 0, which is no pair"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type has 2 values for 331 tokens"),
        ({"tokenizer.ggml.eos_token_id": 331}, "eos_token_id=331 must be an id below 331"),
    ],
)
def test_what_a_file_lacks_is_named(tmp_path, fields, message):
    folder = tmp_path / "folder"
    file = tmp_path / "file.gguf"
    make_checkpoint(folder, "llama")
    write_gguf(folder, file, **fields)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)
