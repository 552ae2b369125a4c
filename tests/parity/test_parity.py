"""Bundles against transformers: logits, trees, several sequences at once, and their bits."""

from __future__ import annotations

import onnx
import pytest
import torch
from checkpoints import make_checkpoint
from nodes import MISSING, same_bits
from parity import (
    PARENTS,
    PROMPT,
    SAME,
    SAME_STATES,
    TREE_TOKENS,
    Text,
    distance,
    load,
    path_to,
    reference,
)
from small_configs import MIXTURES, RECURRENT, SPECIAL

from edgespec import bundle as bundles
from edgespec import export
from edgespec.export import ExportOptions
from edgespec.export.graph_builder import NATIVE

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN_ROPE = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
# One list of factors for texts of any length: the long one, which transformers takes behind 64
# positions, or the short one.
LONG_ROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0,
    "short_factor": [1 + i / 10 for i in range(12)], "long_factor": [1 + i / 2 for i in range(12)],
    "original_max_position_embeddings": 64,
}  # fmt: skip
PARTIAL_LONG_ROPE = {
    **LONG_ROPE,
    **{name: LONG_ROPE[name][:9] for name in ("short_factor", "long_factor")},
}
SHORT_ROPE = {**LONG_ROPE, "factor": 8.0, "original_max_position_embeddings": 512}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}

SHAPES = {"Concat", "Expand", "Identity", "Reshape", "Shape", "Split"}
CHOICES = {"Gather", "GatherElements", "Less", "TopK", "Where"}
SINGLE_NUMBERS = {"Add", "Div", "Mul", "Neg", "Relu", "Sub", "Sum"}

GRANITE_4 = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
MIXED = ["sliding_attention", "full_attention"]

FULL_PRECISION = {
    "llama": {},
    "llama-tied-rope-llama3-bf16": {
        "tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE, "dtype": torch.bfloat16,
    },
    "llama-biases": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
    "mistral-bf16-sharded": {"dtype": torch.bfloat16, "max_shard_size": "60KB"},
    "mistral-tied": {"tie_word_embeddings": True},
    "qwen2-rope-linear": {"rope_parameters": LINEAR_ROPE},
    "qwen2-rope-yarn": {"rope_parameters": YARN_ROPE},
    "llama-rope-longrope-long": {"rope_parameters": LONG_ROPE},
    "llama-rope-longrope-short": {"rope_parameters": SHORT_ROPE},
    "llama-rope-dynamic": {"rope_parameters": DYNAMIC_ROPE},
    "qwen2-tied-fp16": {"tie_word_embeddings": True, "dtype": torch.float16},
    "qwen3-bf16-two-key-heads": {"dtype": torch.bfloat16, "num_key_value_heads": 2},
    "mistral-window": {"sliding_window": 100},
    "qwen2-window-of-the-second-layer": {
        "use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1,
    },
    "gemma3_text-windows-tied": {
        "sliding_window": 24, "layer_types": MIXED, "tie_word_embeddings": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    },
    "gemma3_text-wide-windows": {
        "sliding_window": 150, "num_hidden_layers": 3, "query_pre_attn_scalar": 48,
        "num_key_value_heads": 2,
    },
    "gemma3_text-window-beyond-the-context": {"sliding_window": 4096, "layer_types": MIXED},
    "olmo2": {},
    "lfm2": {},
    "lfm2_moe": {},
    "lfm2_moe-no-bias-not-normalized": {
        "use_expert_bias": False, "norm_topk_prob": False, "num_experts_per_tok": 1,
        "num_dense_layers": 0, "routed_scaling_factor": 1.0,
    },
    "qwen3_5_moe_text": {},
    "qwen3_5_moe_text-tied-bf16": {"tie_word_embeddings": True, "dtype": torch.bfloat16},
    "qwen3_5_text": {},
    "lfm2-tied-bf16": {"tie_word_embeddings": True, "dtype": torch.bfloat16, "conv_L_cache": 4},
    "olmo2-two-key-heads-bf16": {"num_key_value_heads": 2, "dtype": torch.bfloat16},
    "bitnet": {},
    "bitnet-biases-tied-bf16": {
        "attention_bias": True, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "dtype": torch.bfloat16,
    },
    "cwm": {},
    "cohere2": {},
    "cohere2-biases-two-key-heads-tied-bf16": {
        "attention_bias": True, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "dtype": torch.bfloat16,
    },
    "deepseek_v2": {},
    "deepseek_v2-latent-queries-biases-bf16": {
        "q_lora_rank": 96, "attention_bias": True, "routed_scaling_factor": 1.5,
        "rope_parameters": PLAIN_ROPE, "dtype": torch.bfloat16,
    },
    "ernie4_5": {},
    "ernie4_5-biases-two-key-heads-tied-bf16": {
        "use_bias": True, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "dtype": torch.bfloat16,
    },
    "ernie4_5_moe": {},
    "ernie4_5_moe-every-second-layer-tied-bf16": {
        "num_hidden_layers": 4, "moe_layer_interval": 2, "moe_layer_end_index": 2,
        "moe_layer_start_index": 0, "tie_word_embeddings": True, "dtype": torch.bfloat16,
    },
    "exaone4": {},
    "exaone4-no-windows": {"sliding_window": None, "layer_types": MIXED[1:] * 2},
    "falcon_h1": {},
    "falcon_h1-norms-biases-bf16": {
        "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_proj_bias": True,
        "projectors_bias": True, "mlp_bias": True, "attention_bias": True,
        "mamba_conv_bias": False, "dtype": torch.bfloat16,
    },
    "gemma": {},
    "gemma-tied-bf16": {"tie_word_embeddings": True, "dtype": torch.bfloat16},
    "gemma2": {},
    "gemma2-no-limits-tied-bf16": {
        "attn_logit_softcapping": None, "final_logit_softcapping": None,
        "query_pre_attn_scalar": 2000,  # sharp attention would amplify rounding beyond `SAME`
        "tie_word_embeddings": True, "dtype": torch.bfloat16,
    },
    "gemma3n_text": {},
    "gemma3n_text-widths-two-key-heads-tied-bf16": {
        "intermediate_size": [160, 96, 160, 128], "num_key_value_heads": 2,
        "altup_num_inputs": 4, "altup_correct_scale": False, "num_kv_shared_layers": 0,
        "tie_word_embeddings": True, "dtype": torch.bfloat16,
    },
    "gemma4_text-limited": {"final_logit_softcapping": 0.9},
    "gemma4_text-one-matrix-for-keys-and-values-bf16": {
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
        "num_key_value_heads": 2, "num_global_key_value_heads": 1, "dtype": torch.bfloat16,
    },
    "gemma4_text-experts": {
        "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "num_kv_shared_layers": 0,
        "moe_intermediate_size": 96, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
    },
    "gemma4_unified_text-limited": {"final_logit_softcapping": 0.9},
    "granite": {},
    "granitemoe": {},
    "granitemoe-two-key-heads-tied-bf16": {
        "num_key_value_heads": 2, "tie_word_embeddings": True, "dtype": torch.bfloat16,
    },
    "granitemoehybrid": {},
    "granitemoehybrid-experts-groups-bf16": {
        "num_local_experts": 8, "num_experts_per_tok": 3, "mamba_n_groups": 2,
        "mamba_conv_bias": False, "mamba_proj_bias": True, "dtype": torch.bfloat16,
    },
    "granitemoehybrid-attention-alone": GRANITE_4,
    "granitemoehybrid-attention-alone-rope": {**GRANITE_4, "position_embedding_type": "rope"},
    "llama4_text": {},
    "llama4_text-chunks-queries-that-grow": {"attention_chunk_size": 40, "floor_scale": 24},
    "llama4_text-a-dense-layer-no-norms-biases-bf16": {
        "moe_layers": [1], "use_qk_norm": False, "attention_bias": True, "num_key_value_heads": 2,
        "rope_parameters": LLAMA3_ROPE, "dtype": torch.bfloat16,
    },
    "minicpm": {},
    "minicpm-rope-longrope-two-key-heads-tied-bf16": {
        "num_key_value_heads": 2, "rope_parameters": SHORT_ROPE, "tie_word_embeddings": True,
        "dtype": torch.bfloat16,
    },
    "minicpm3": {},
    "minicpm3-rope-longrope-plain-queries-other-factors-tied-bf16": {
        "q_lora_rank": None, "scale_emb": 3.0, "scale_depth": None, "dim_model_base": None,
        "v_head_dim": 48, "tie_word_embeddings": True, "dtype": torch.bfloat16,
        "rope_parameters": {
            **SHORT_ROPE, "short_factor": [1 + n / 8 for n in range(16)], "long_factor": [1.0] * 16,
        },
    },
    "hyperclovax": {},
    "hyperclovax-the-usual-scores-tied-bf16": {
        "attention_multiplier": None, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "dtype": torch.bfloat16,
    },
    "internlm3": {},
    "internlm3-biases-bf16": {
        "attention_bias": True, "mlp_bias": True, "dtype": torch.bfloat16,
    },
    "iquestcoder": {},
    "ministral": {},
    "ministral3": {},
    "ministral3-queries-that-grow": {
        "rope_parameters": {
            **SPECIAL["ministral3"]["rope_parameters"], "original_max_position_embeddings": 64,
        },
    },
    "nemotron_h": {},
    "nemotron_h-biases-bf16": {"mlp_bias": True, "use_bias": True, "dtype": torch.bfloat16},
    "nemotron_h-experts": SPECIAL["nemotron_h_moe"],
    "nemotron_h-narrow-experts-beside-mlps-biases": {
        **SPECIAL["nemotron_h_moe"], "layers_block_type": ["mamba", "moe", "attention", "mlp"],
        "moe_latent_size": 32, "mlp_bias": True, "norm_topk_prob": False,
    },
    "olmo3": {},
    "seed_oss": {},
    "seed_oss-other-biases-bf16": {
        "attention_bias": False, "attention_out_bias": True, "mlp_bias": True,
        "dtype": torch.bfloat16,
    },
    "smollm3": {},
    "phi3": {},
    "phi3-window-wholly-rotated": {"sliding_window": 100, "rope_parameters": PLAIN_ROPE},
    "phi3-rope-longrope-tied-bf16": {
        "hidden_size": 96, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "original_max_position_embeddings": 64, "dtype": torch.bfloat16,
        "rope_parameters": {**PARTIAL_LONG_ROPE, "partial_rotary_factor": 0.75},
    },
    "phimoe": {},
    "phimoe-rope-longrope-no-biases-tied-bf16": {
        "attention_bias": False, "lm_head_bias": False, "router_jitter_noise": 0.01,
        "num_key_value_heads": 2, "tie_word_embeddings": True, "dtype": torch.bfloat16,
        "original_max_position_embeddings": 512,
        "rope_parameters": {**SHORT_ROPE, "short_mscale": 1.25, "long_mscale": 1.5},
    },
    "glm-biases": {},
    "glm4-two-key-heads-wholly-rotated": {
        "num_key_value_heads": 2,
        "rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 1.0},
    },
    "glm4-tied": {"attention_bias": False, "tie_word_embeddings": True},
    "glm4_moe": {},
    "glm4_moe-no-norms-of-heads-biases-dense-bf16": {
        "use_qk_norm": False, "attention_bias": True, "num_key_value_heads": 2,
        "first_k_dense_replace": 2, "dtype": torch.bfloat16,
    },
    "glm4_moe_lite": {},
    "glm4_moe_lite-latents-of-512": {
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "head_dim": 64, "num_hidden_layers": 1,
    },
    "glm4_moe_lite-no-latent-queries-half-split-biases-bf16": {
        "q_lora_rank": None, "rope_interleave": False, "attention_bias": True,
        "n_shared_experts": 2, "v_head_dim": 32, "dtype": torch.bfloat16,
    },
    "kimi_linear": {},
    "kimi_linear-experts": SPECIAL["kimi_linear_moe"],
    "kimi_linear-experts-latent-queries-biases-bf16": {
        **SPECIAL["kimi_linear_moe"], "q_lora_rank": 96, "attention_bias": True,
        "n_shared_experts": 2, "v_head_dim": 32, "linear_conv_kernel_dim": 3,
        "dtype": torch.bfloat16,
    },
    "mistral4": {},
    "mistral4-queries-that-grow": {
        "rope_parameters": {
            **SPECIAL["mistral4"]["rope_parameters"], "original_max_position_embeddings": 64,
        },
    },
    "mixtral": {},
    "mixtral-a-window-tied-bf16": {
        "sliding_window": 40, "num_key_value_heads": 2, "num_experts_per_tok": 1,
        "tie_word_embeddings": True, "dtype": torch.bfloat16,
    },
    "hunyuan_v1_dense-biases-alpha": {
        "attention_bias": True, "num_key_value_heads": 2,
        "rope_parameters": {**DYNAMIC_ROPE, "alpha": 50.0},
    },
    "hunyuan_v1_dense-tied": {"tie_word_embeddings": True},
    "stablelm-biases": {"use_qkv_bias": True},
    "stablelm-tied-rope-linear": {
        "num_key_value_heads": 2, "tie_word_embeddings": True,
        "rope_parameters": {**LINEAR_ROPE, "partial_rotary_factor": 0.5},
    },
    "gpt_oss": {},
    "gpt_oss-wide-windows-bf16": {
        "num_key_value_heads": 2, "sliding_window": 150, "dtype": torch.bfloat16,
    },
    "olmoe": {},
    "olmoe-shares-of-all-experts-bf16": {"norm_topk_prob": False, "dtype": torch.bfloat16},
    "qwen2_5_vl_text": {},
    "qwen2_moe": {},
    "qwen2_moe-a-dense-layer-no-biases-tied-bf16": {
        "mlp_only_layers": [0], "qkv_bias": False, "norm_topk_prob": True,
        "tie_word_embeddings": True, "dtype": torch.bfloat16,
    },
    "qwen3_moe": {},
    "qwen3_moe-a-dense-layer": {"mlp_only_layers": [0], "num_experts_per_tok": 1},
    "qwen3_next": {},
    "qwen3_next-a-dense-layer-tied-bf16": {
        "mlp_only_layers": [1], "tie_word_embeddings": True, "dtype": torch.bfloat16,
    },
    "qwen3_vl_moe_text": {},
    "qwen3_vl_moe_text-a-dense-layer-tied-bf16": {
        "mlp_only_layers": [0], "tie_word_embeddings": True, "dtype": torch.bfloat16,
    },
    "qwen3_vl_text": {},
    "apertus": {},
    "apertus-biases-two-key-heads-tied-bf16": {
        "attention_bias": True, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "rope_parameters": PLAIN_ROPE, "dtype": torch.bfloat16,
    },
    "arcee": {},
    "arcee-biases-two-key-heads-tied-bf16": {
        "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2,
        "tie_word_embeddings": True, "dtype": torch.bfloat16,
    },
    "vaultgemma": {},
    "qwen3-tied-sharded": {"tie_word_embeddings": True, "max_shard_size": "90KB"},
}  # fmt: skip


LEAVES = [row for row in range(len(PARENTS)) if row not in PARENTS]


@pytest.fixture(scope="module", params=FULL_PRECISION)
def full(request, tmp_path_factory):
    """transformers' model, and its bundle in fp32."""
    folder = tmp_path_factory.mktemp("full")
    architecture = request.param.split("-")[0]
    model = make_checkpoint(folder / "checkpoint", architecture, **FULL_PRECISION[request.param])
    sharded = (folder / "checkpoint" / "model.safetensors.index.json").exists()
    assert sharded == ("sharded" in request.param)
    export.make(folder / "checkpoint", folder / "bundle", options=ExportOptions("fp32"))
    return model, bundles.load(folder / "bundle")


def expected_of_tree(model, text):
    """Returns transformers' logits of each row of the tree behind a text, by row."""
    found = {}
    branches = [path_to(leaf) for leaf in LEAVES]
    for rows in branches:
        with torch.no_grad():
            whole = model(torch.tensor([[*text, *(TREE_TOKENS[row] for row in rows)]])).logits[0]
        found |= zip(rows, whole[-len(rows) :].numpy(), strict=True)
    return found


def check_tree(found, model, text, same):
    for row, logits in expected_of_tree(model, text).items():
        assert distance(found[row], logits) < same, f"row {row}"


def test_logits_are_those_of_transformers(full):
    """Of prompts, trees behind them, and two sequences in one pass, one a fork of the other."""
    model, bundle = full
    sharp = model.config.model_type.startswith(("gemma3n", "gemma4"))
    states = any(each.state for each in bundle.target.native.recurrent)
    same = SAME_STATES if sharp or states else SAME
    text = Text(load(bundle))
    tokens = PROMPT[:150]
    assert distance(text.read(tokens)[-1], reference(model, tokens)) < same
    accepted = path_to(6)
    assert accepted != list(range(len(accepted)))
    check_tree(text.tree(accepted), model, tokens, same)
    tokens = tokens + [TREE_TOKENS[row] for row in accepted]

    other = Text(text.model)
    others = PROMPT[300:380]
    other.read(others)
    parts = [text.rows(TREE_TOKENS, PARENTS), other.rows(TREE_TOKENS, PARENTS)]
    found = [each.copy() for each in text.model.forward(parts)]
    check_tree(found[0], model, tokens, same)
    check_tree(found[1], model, others, same)
    for rows in parts:
        rows.accept([])

    text.read(PROMPT[150:300])
    tokens = tokens + PROMPT[150:300]
    check_tree(text.tree(), model, tokens, same)


# Bits

FAMILIES = (
    "llama", "apertus", "bitnet", "cohere2", "exaone4", "gemma2", "gemma3n_text", "gemma4_text",
    "glm4", "granite", "hunyuan_v1_dense", "olmo3", "phi3", "smollm3", "stablelm", *RECURRENT,
)  # fmt: skip
# Matrices of one size for all, so that their errors are alike.
SIZES = {"hidden_size": 96, "head_dim": 24, "intermediate_size": 160, "num_key_value_heads": 2}
OWN_SIZES = {"kimi_linear": {"num_key_value_heads": 4}}  # where latents have the keys of all heads


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Makes transformers' model and its bundle in int4, once for each architecture."""
    found = {}

    def exported(architecture):
        if architecture not in found:
            folder = tmp_path_factory.mktemp(architecture)
            sizes = {} if architecture in MIXTURES else SIZES | OWN_SIZES.get(architecture, {})
            model = make_checkpoint(folder / "checkpoint", architecture, **sizes)
            export.make(
                folder / "checkpoint", folder / "bundle", options=ExportOptions("int4-small")
            )
            found[architecture] = model, bundles.load(folder / "bundle")
        return found[architecture]

    return exported


@pytest.mark.parametrize("architecture", FAMILIES[1:])
def test_four_bits_change_logits_as_they_change_llamas(exported, architecture):
    distances = {}
    for name in ("llama", architecture):
        model, bundle = exported(name)
        logits = Text(load(bundle)).read(PROMPT[:100])[-1]
        distances[name] = distance(logits, reference(model, PROMPT[:100]))
    most = 2.0 if bundle.target.layers > 2 else 1.5
    assert distances[architecture] < most * distances["llama"]


@pytest.mark.parametrize("architecture", [*FAMILIES, *MIXTURES])
def test_graphs_have_the_same_bits_on_every_processor(exported, architecture):
    """Besides our operators they have those alone that move numbers, or compute them one by one."""
    _, bundle = exported(architecture)
    graph = bundle.path / bundle.manifest.roles[bundles.TARGET].native.graph
    nodes = onnx.load(graph, load_external_data=False).graph.node
    others = {node.op_type for node in nodes if node.domain != NATIVE}
    assert others <= SHAPES | CHOICES | SINGLE_NUMBERS


@pytest.mark.parametrize("architecture", [*FAMILIES, *MIXTURES])
def test_rows_have_the_same_bits_in_any_pass(exported, architecture):
    _, bundle = exported(architecture)
    model = load(bundle, threads=2)
    other_model = load(bundle)
    tokens = PROMPT[:70]
    whole = Text(model)
    alone = Text(other_model)
    same_bits(whole.read(tokens), alone.read(tokens, chunk=1))
    other = Text(model)
    other.read(PROMPT[200:230], chunk=7)
    parts = [other.rows(PROMPT[230:235]), whole.rows(TREE_TOKENS, PARENTS)]
    _, tree = (each.copy() for each in model.forward(parts))
    for leaf in LEAVES:
        branch = Text(other_model)
        branch.read(tokens, chunk=33)
        expected = branch.read([TREE_TOKENS[row] for row in path_to(leaf)], chunk=1)
        same_bits(tree[path_to(leaf)], expected)
    parts[1].accept([0, 1, 4])
    branch = Text(other_model)
    branch.read([*tokens, *(TREE_TOKENS[row] for row in (0, 1, 4))], chunk=9)
    same_bits(whole.read(PROMPT[80:90]), branch.read(PROMPT[80:90], chunk=4))
