"""config.json: defaults, end-of-text ids, and everything that is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from checkpoints import config_class, edit_json, make_checkpoint
from small_configs import ARCHITECTURES as TRANSFORMERS
from small_configs import ODD_SHAPES

from edgespec.bundle import Growth
from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models import ARCHITECTURES, ModelConfig, load_checkpoint
from edgespec.models.fields import ConfigFields

SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    make_checkpoint(path, "llama")
    return {file.name: file for file in path.iterdir()}


@pytest.fixture
def folder(saved, tmp_path):
    """A llama checkpoint whose config and generation config may be edited."""
    for name, file in saved.items():
        if name.endswith(".json"):
            (tmp_path / name).write_bytes(file.read_bytes())
        else:
            (tmp_path / name).symlink_to(file)
    return tmp_path


def bare_config(model_type: str, **values: object) -> ModelConfig:
    given = ConfigFields({"model_type": model_type, **SIZES, **values}, "config.json")
    architecture = ARCHITECTURES[model_type]
    return ModelConfig.from_fields(
        architecture.usual(given.with_defaults(architecture.defaults)),
        ConfigFields({}, "generation_config.json"),
    )


EPSILONS = {
    "cohere2": "layer_norm_eps", "lfm2": "norm_eps", "lfm2_moe": "norm_eps",
    "nemotron_h": "layer_norm_epsilon",
    "stablelm": "layer_norm_eps",
}  # fmt: skip


# Without which the sizes fit no model.
NEEDED = {
    "bitnet": {"num_key_value_heads": 8},
    "nemotron_h": {"layers_block_type": ["mamba"]},
}


@pytest.mark.parametrize("model_type", sorted(TRANSFORMERS))
def test_absent_fields_take_transformers_defaults(model_type):
    needed = NEEDED.get(model_type, {})
    reference = config_class(model_type)(**{**SIZES, **needed})
    reference.allow_global_per_layer_attribute_access = True
    config = bare_config(model_type, **needed)
    head_dim = getattr(reference, "head_dim", None) or reference.hidden_size // 32
    kv_heads = reference.num_key_value_heads
    latent = hasattr(reference, "kv_lora_rank")
    if latent:  # the one head of keys, as far as it is rotated
        head_dim = reference.qk_rope_head_dim
        kv_heads = 1
    assert config.head_dim == head_dim
    assert config.kv_heads == kv_heads
    eps = EPSILONS.get(model_type, "rms_norm_eps")
    assert config.norm_eps == getattr(reference, eps)
    assert config.context_length == reference.max_position_embeddings
    assert config.tied == getattr(reference, "tie_word_embeddings", False)
    eos = getattr(reference, "eos_token_id", None)
    assert config.eos_ids == (
        () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    )
    assert config.attention_bias == getattr(reference, "attention_bias", False)
    part = (getattr(reference, "rope_parameters", None) or {}).get("partial_rotary_factor", 1.0)
    assert latent or config.fields.number("partial_rotary_factor", 1.0) == part


SLIDING, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("model_type", "values", "windows"),
    [
        ("mistral", {}, (4096, 4096, 4096)),  # the default
        ("mistral", {"sliding_window": None}, (None, None, None)),
        ("llama", {}, (None, None, None)),
        ("qwen2", {"sliding_window": 16}, (None, None, None)),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16}, (None, None, None)),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
            (None, 16, 16),
        ),
        (
            "qwen3",
            {"layer_types": [SLIDING, FULL, SLIDING], "sliding_window": 8},
            (8, None, 8),
        ),
        ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 2}, (8, None, 8)),
        ("gemma2", {"sliding_window": 8}, (8, None, 8)),
        ("granitemoehybrid", {"layer_types": ["attention"] * 3}, (None, None, None)),
        ("ministral3", {}, (None, None, None)),
        ("smollm3", {}, (None, None, None)),
        ("olmo3", {"num_hidden_layers": 5}, (4096, 4096, 4096, None, 4096)),
        ("exaone4", {"num_hidden_layers": 4, "sliding_window": 8}, (8, 8, 8, None)),
        ("gemma3_text", {}, (4096, 4096, 4096)),  # every sixth layer sees everything
    ],
)
def test_windows(model_type, values, windows):
    assert bare_config(model_type, **{"num_hidden_layers": 3, **values}).windows == windows


def test_a_window_as_long_as_the_context_is_none():
    for window, mask in ((99, "window:99"), (100, "causal"), (4096, "causal")):
        values = {"sliding_window": window, "max_position_embeddings": 100}
        config = bare_config("mistral", **values)
        assert ARCHITECTURES["mistral"](config).attention(0).mask == mask
        # Which rotation table it has does not depend on that.
        local = ARCHITECTURES["gemma3_text"](bare_config("gemma3_text", **values)).attention(0)
        assert (local.mask, local.rope) == (mask, "local")


@pytest.mark.parametrize(
    ("values", "mask", "growth"),
    [
        ({}, "chunk:8192", Growth(0.1, 8192, 1)),
        ({"attn_temperature_tuning": 4}, "chunk:8192", Growth(0.1, 8192, 1)),
        ({"attn_temperature_tuning": False}, "chunk:8192", None),
        ({"attn_scale": 0.2, "floor_scale": 100}, "chunk:8192", Growth(0.2, 100, 1)),
        ({"attention_chunk_size": None}, "causal", Growth(0.1, 8192, 1)),
        ({"max_position_embeddings": 8192}, "causal", Growth(0.1, 8192, 1)),
        ({"max_position_embeddings": 8191}, "causal", None),
    ],
)
def test_attention_of_llama_4_changes_within_texts_alone(values, mask, growth):
    sizes = {"num_key_value_heads": 8, "intermediate_size_mlp": 96, "head_dim": 24}
    own = {**sizes, "num_hidden_layers": 2, "no_rope_layers": [1, 0], **values}
    decoder = ARCHITECTURES["llama4_text"](bare_config("llama4_text", **own)).decoder()
    turned, still = decoder.attentions
    assert (turned.mask, still.mask) == (mask, "causal")
    assert not turned.growth
    assert (decoder.ropes[still.growth].growth if still.growth else None) == growth
    assert len(decoder.ropes) == 1 + (growth is not None)


def test_null_kv_heads_means_as_many_as_heads():
    assert bare_config("mistral", sliding_window=None, num_key_value_heads=None).kv_heads == 32


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 4096},
        {"model_type": "qwen3", "layer_types": ["full_attention"]},
        {"model_type": "llama", "hidden_act": "swish"},
        {"model_type": "llama", "pretraining_tp": 2, "layer_types": None},
        {"model_type": "llama", "hidden_size": 72, "head_dim": 2},
        {"model_type": "llama", "max_position_embeddings": 2},
        {"model_type": "llama", "head_dim": 2**20},
    ],
)
def test_harmless_settings_load(values):
    assert bare_config(**values).num_layers == 1


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [7, 9]}, {"eos_token_id": 3}, (7, 9)),
        ({"eos_token_id": 7}, {"eos_token_id": [3, 4]}, (7,)),
        ({"eos_token_id": None}, {"eos_token_id": [3, 4]}, (3, 4)),
        (None, {"eos_token_id": 3}, (3,)),
        (None, {"eos_token_id": None}, ()),
    ],
)
def test_eos_ids(folder, generation, config, expected):
    edit_json(folder / "config.json", **config)
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert load_checkpoint(folder).config.eos_ids == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt2"}, ["model_type='gpt2'", "qwen3"]),
        ({"model_type": None}, ["model_type=(absent)"]),
        ({"model_type": ["llama"]}, ["model_type=['llama']"]),
        ({"hidden_act": "relu"}, ["hidden_act='relu'"]),
        (
            {"layer_types": ["full_attention", "chunked_attention"]},
            ["layer_types", "'chunked_attention'", "layer 1"],
        ),
        (
            {"model_type": "gemma3_text", "use_bidirectional_attention": True},
            ["use_bidirectional_attention=True"],
        ),
        (
            {"model_type": "gemma3_text", "use_bidirectional_attention": "vision"},
            ["use_bidirectional_attention='vision'"],
        ),
        (
            {"model_type": "granitemoehybrid", "position_embedding_type": "alibi"},
            ["position_embedding_type='alibi'", "use 'rope'"],
        ),
        (
            {"model_type": "granitemoehybrid", "time_step_limit": [0.1, 1.0]},
            ["time_step_limit=[0.1, 1.0]", "no limits"],
        ),
        (
            {"model_type": "nemotron_h", "layers_block_type": ["moe"], "n_group": 4},
            ["n_group=4", "one group"],
        ),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "M-*D"},
            ["layer_types", "layer 3 is 'D'"],
        ),
        (
            {"model_type": "nemotron_h", "layers_block_type": ["mlp"], "mlp_hidden_act": "silu"},
            ["mlp_hidden_act='silu'", "only relu2"],
        ),
        (
            {"model_type": "granite", "layer_types": ["attention", "mamba"]},
            ["layer_types", "attention in every layer"],
        ),
        (
            {"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 9},
            ["use_sliding_window=True", "add layer_types"],
        ),
        (
            {"model_type": "stablelm", "use_parallel_residual": True},
            ["use_parallel_residual=True"],
        ),
        (
            {"model_type": "qwen2_moe", "use_sliding_window": True},
            ["use_sliding_window=True", "add layer_types"],
        ),
        ({"model_type": "deepseek_v2", "norm_topk_prob": True}, ["norm_topk_prob=True"]),
        ({"model_type": "deepseek_v2", "moe_layer_freq": 2}, ["moe_layer_freq=2"]),
        ({"model_type": "ernie4_5_moe", "use_bias": True}, ["use_bias=True"]),
        ({"model_type": "minicpm", "num_experts": 8}, ["num_experts=8", "without experts"]),
        ({"model_type": "apertus", "hidden_act": "silu"}, ["hidden_act='silu'"]),
        ({"model_type": "arcee", "hidden_act": "silu"}, ["hidden_act='silu'"]),
        ({"model_type": "stablelm", "qk_layernorm": True}, ["qk_layernorm=True"]),
        ({"model_type": "hyperclovax", "use_post_norm": False}, ["use_post_norm=False"]),
        ({"model_type": "internlm3", "qkv_bias": True}, ["qkv_bias=True", "as bias is"]),
        (
            {"model_type": "falcon_h1", "mamba_rms_norm": True},
            ["mamba_norm_before_gate=True", "where it is false"],
        ),
        ({"model_type": "falcon_h1", "projectors_bias": True}, ["projectors_bias=True"]),
        ({"model_type": "falcon_h1", "hidden_act": "gelu"}, ["hidden_act='gelu'", "only silu"]),
        ({"model_type": "kimi_linear", "hidden_act": "gelu"}, ["hidden_act='gelu'", "only silu"]),
        ({"model_type": "kimi_linear", "mla_use_nope": False}, ["mla_use_nope=False"]),
        ({"model_type": "kimi_linear", "attn_res_block_size": 3}, ["attn_res_block_size=3"]),
        (
            {"model_type": "kimi_linear", "linear_attn_config": {"gate_lower_bound": -5.0}},
            ["linear_attn_config", "gate_lower_bound=-5.0"],
        ),
        ({"model_type": "llama4_text", "num_experts_per_tok": 2}, ["num_experts_per_tok=2"]),
        ({"model_type": "phimoe", "num_experts_per_tok": 3}, ["num_experts_per_tok=3"]),
        ({"model_type": "iquestcoder", "clip_qkv": 8.0}, ["clip_qkv=8.0"]),
        ({"model_type": "glm4", "partial_rotary_factor": 0.4}, ["partial_rotary_factor=0.4", "9"]),
        ({"model_type": "phi3", "partial_rotary_factor": 0.01}, ["partial_rotary_factor=0.01"]),
        ({"model_type": "hunyuan_v1_dense", "use_cla": True}, ["use_cla=True"]),
        ({"model_type": "hunyuan_v1_dense", "use_qk_norm": False}, ["use_qk_norm=False"]),
        ({"rope_scaling": {"rope_type": "mrope", "factor": 2.0}}, ["rope_type='mrope'"]),
        (
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
            ["quantization_config", "quant_method='bitsandbytes'", "gptq"],
        ),
    ],
)
def test_what_is_not_implemented_is_refused_by_name_and_value(folder, changes, words):
    edit_json(folder / "config.json", **changes)
    with pytest.raises(UnsupportedModelError) as error:
        load_checkpoint(folder)
    assert all(word in str(error.value) for word in ["config.json", *words])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": None}, ["hidden_size=(absent)"]),
        ({"vocab_size": 0}, ["vocab_size=0"]),
        ({"pard_token": 331}, ["pard_token=331", "must be a token id from 0 to 330"]),
        ({"pard_token": -1}, ["pard_token=-1", "must be a token id"]),
        ({"pard_token": True}, ["pard_token=True", "must be a token id"]),
        ({"pard_token": [330]}, ["pard_token=[330]", "must be a token id"]),
        ({"max_position_embeddings": 1}, ["max_position_embeddings=1", "2 or more"]),
        ({"vocab_size": 10**40}, ["vocab_size=1000", "2147483647 or less"]),
        ({"hidden_size": 2**31, "head_dim": None}, ["hidden_size=2147483648", "1048576 or less"]),
        ({"head_dim": 10**40}, ["head_dim=1000", "1048576 or less"]),
        ({"num_hidden_layers": 100_000}, ["num_hidden_layers=100000", "4096 or less"]),
        ({"num_hidden_layers": "2"}, ["num_hidden_layers='2'"]),
        ({"intermediate_size": True}, ["intermediate_size=True"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps=0"]),
        ({"rms_norm_eps": 10**400}, ["rms_norm_eps=1000"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads=3", "num_attention_heads=4"]),
        ({"head_dim": None, "hidden_size": 66}, ["hidden_size=66", "num_attention_heads=4"]),
        ({"head_dim": 25}, ["head_dim=25", "even"]),
        ({"attention_bias": "no"}, ["attention_bias='no'"]),
        (
            {"model_type": "smollm3", "no_rope_layers": [1]},
            ["no_rope_layers=[1]", "a list of 2 layers"],
        ),
        ({"model_type": "granite", "logits_scaling": 0}, ["logits_scaling=0"]),
        ({"model_type": "falcon_h1", "mamba_d_head": 3}, ["mamba_d_head=3", "must be 1024"]),
        (
            {"model_type": "falcon_h1", "mlp_multipliers": [1.0]},
            ["mlp_multipliers=[1.0]", "a list of 2 positive numbers"],
        ),
        (
            {"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": 4}},
            ["full_attn_layers=4", "a list of numbers of layers"],
        ),
        ({"model_type": "llama4_text", "moe_layers": 1}, ["moe_layers=1", "a list of numbers"]),
        ({"model_type": "gemma2", "final_logit_softcapping": -1}, ["final_logit_softcapping=-1"]),
        ({"layer_types": "full_attention"}, ["layer_types='full_attention'", "a list"]),
        ({"layer_types": ["full_attention"]}, ["layer_types=", "a list of 2 layers"]),
        ({"quantization_config": "gptq"}, ["quantization_config='gptq'"]),
        ({"model_type": "glm", "partial_rotary_factor": 1.5}, ["factor=1.5", "1 or less"]),
        ({"model_type": "stablelm", "layer_norm_eps": 0}, ["layer_norm_eps=0"]),
        ({"eos_token_id": "</s>"}, ["eos_token_id='</s>'"]),
        ({"eos_token_id": [1, -1]}, ["eos_token_id=[1, -1]"]),
        ({"eos_token_id": True}, ["eos_token_id=True"]),
    ],
)
def test_impossible_values_are_named(folder, changes, words):
    (folder / "generation_config.json").unlink()
    edit_json(folder / "config.json", **changes)
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(folder)
    assert all(word in str(error.value) for word in ["config.json", *words])


def test_published_names_of_kimi_linear_are_read(tmp_path):
    """Layers are counted from 1, and sizes of linear attention are a group."""
    make_checkpoint(tmp_path, "kimi_linear_moe")
    expected = load_checkpoint(tmp_path).decoder
    sizes = {"num_heads": 4, "head_dim": 32, "short_conv_kernel_size": 4}
    edit_json(
        tmp_path / "config.json",
        layer_types=None,
        mlp_layer_types=None,
        first_k_dense_replace=1,
        linear_head_dim=None,
        linear_num_heads=None,
        linear_attn_config={"full_attn_layers": [2], "kda_layers": [1, 3], **sizes},
        moe_router_activation_func="sigmoid",
        mla_use_nope=True,
    )
    found = load_checkpoint(tmp_path).decoder
    assert replace(found, ropes={}) == replace(expected, ropes={})


@pytest.mark.parametrize(
    "content", [b"", b'{"model_type": "llama"', b"[1]", b"\xff\xfe", b"[" * 100_000, b"null"]
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_invalid_json(folder, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        load_checkpoint(folder)


def test_missing_config_and_folder(folder):
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        load_checkpoint(folder)
    with pytest.raises(CheckpointError, match="nowhere does not exist: give a checkpoint"):
        load_checkpoint(folder / "nowhere")


def test_odd_shapes_are_read(folder):
    config = load_checkpoint(folder).config
    assert config.model_type == "llama"
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (331, 64, 160)
    assert (config.num_layers, config.heads, config.kv_heads, config.head_dim) == (2, 4, 1, 24)
    assert config.norm_eps == ODD_SHAPES["rms_norm_eps"]
    assert config.context_length == ODD_SHAPES["max_position_embeddings"]
    assert config.windows == (None, None)
