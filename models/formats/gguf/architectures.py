"""The architectures of GGUF files that can be read.

What llama.cpp's converter made of a checkpoint's config and tensors is taken from its source
(https://github.com/ggml-org/llama.cpp, conversion/ and gguf-py/), and undone here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.formats.gguf.encoders import ENCODERS
from edgespec.models.formats.gguf.hybrids import HYBRIDS
from edgespec.models.formats.gguf.mamba import MAMBAS
from edgespec.models.formats.gguf.names import (
    BOTH,
    EXPERT,
    GRANITE,
    MIXTURE,
    NUMBER,
    WEIGHED_EXPERT,
    WEIGHED_SIZES,
    Naming,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_NORMS_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_NORMS_AROUND = {**_NORMS_BEHIND, "ffn_norm": "pre_feedforward_layernorm"}
_LAYER_INPUT = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_LAYER_INPUTS = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_SPARSE = {  # of Mixtral
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": f"block_sparse_moe{EXPERT}w1",
    "ffn_up_exps": f"block_sparse_moe{EXPERT}w3",
    "ffn_down_exps": f"block_sparse_moe{EXPERT}w2",
}
_LOCAL_EXPERTS = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
_SHARED_EXPERT = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": f"self_attn.k_b_proj.{NUMBER}",
    "attn_v_b": f"self_attn.v_b_proj.{NUMBER}",
    **_SHARED_EXPERT,
}

_QWEN3_MOE = Naming(
    "qwen3_moe",
    integers={**MIXTURE, "moe_intermediate_size": "expert_feed_forward_length"},
    constants={"norm_topk_prob": True},
)

_GEMMA3 = Naming(
    "gemma3_text",
    _NORMS_AROUND,
    norm_offset=1.0,
    window=True,
    widest=62,
    constants={"sliding_window_pattern": 6, "rope_local_base_freq": 10_000.0},
)

ARCHITECTURES: Mapping[str, Naming] = {
    "llama": Naming("llama", layer=_SPARSE, interleaved=True),
    "llama4": Naming(
        "llama4_text",
        {
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
            "ffn_gate_inp": "feed_forward.router",
            "ffn_gate_exps": f"feed_forward{EXPERT}gate_proj",
            "ffn_up_exps": f"feed_forward{EXPERT}up_proj",
            "ffn_down_exps": f"feed_forward{EXPERT}down_proj",
            "ffn_gate_up_exps": f"feed_forward{EXPERT}{BOTH}",
            "ffn_gate_shexp": "feed_forward.shared_expert.gate_proj",
            "ffn_up_shexp": "feed_forward.shared_expert.up_proj",
            "ffn_down_shexp": "feed_forward.shared_expert.down_proj",
        },
        integers={
            **_LOCAL_EXPERTS,
            "intermediate_size_mlp": "feed_forward_length",
            "intermediate_size": "expert_feed_forward_length",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
    ),
    **ENCODERS,
    **HYBRIDS,
    **MAMBAS,
    "arcee": Naming("arcee", interleaved=True, present={"mlp_bias": "ffn_up.bias"}),
    "bitnet": Naming(
        "bitnet",
        {"attn_sub_norm": "self_attn.attn_sub_norm", "ffn_sub_norm": "mlp.ffn_sub_norm"},
        constants={"hidden_act": "silu"},  # as in llama.cpp, of the first models of that name
    ),
    "cohere2": Naming(
        "cohere2",
        layer_norm=True,
        window=True,
        numbers={"logit_scale": "logit_scale"},
        constants={"sliding_window_pattern": 4},
    ),
    "ernie4_5": Naming("ernie4_5", present={"use_bias": "attn_q.bias"}),
    "ernie4_5-moe": Naming(
        "ernie4_5_moe",
        layer={
            **_SHARED_EXPERT,
            "exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias",
        },
        integers={
            "moe_num_experts": "expert_count",
            "moe_k": "expert_used_count",
            "moe_num_shared_experts": "expert_shared_count",
            "moe_intermediate_size": "expert_feed_forward_length",
            "moe_layer_start_index": "leading_dense_block_count",
            "moe_layer_interval": "interleave_moe_layer_step",
        },
        present={"use_bias": "attn_q.bias"},
    ),
    "mistral3": Naming("ministral3", interleaved=True, log_multiplier=1.0),
    "smollm3": Naming("smollm3", interleaved=True),
    # Granite 4, too, where all layers are attention and an MLP.
    "granite": Naming(
        "granite",
        interleaved=True,
        numbers=GRANITE,
        only={"rope.scaling.finetuned": (None, True)},  # False stands for no RoPE
    ),
    "granitemoe": Naming(
        "granitemoe",
        {"ffn_gate_inp": "block_sparse_moe.router.layer"},
        interleaved=True,
        numbers=GRANITE,
        integers=_LOCAL_EXPERTS,
    ),
    "qwen2": Naming("qwen2"),
    "qwen2vl": Naming("qwen2_5_vl_text"),
    "qwen2moe": Naming(
        "qwen2_moe",
        layer=WEIGHED_EXPERT,
        integers=WEIGHED_SIZES,
        present={"qkv_bias": "attn_q.bias"},
    ),
    "qwen3": Naming("qwen3"),
    "qwen3moe": _QWEN3_MOE,
    "qwen3vlmoe": replace(_QWEN3_MOE, model_type="qwen3_vl_moe_text"),
    "qwen3vl": Naming("qwen3_vl_text"),
    "seed_oss": Naming(
        "seed_oss",
        {"post_attention_norm": "post_attention_layernorm"},
        present={"attention_out_bias": "attn_output.bias"},
    ),
    "olmo2": Naming("olmo2", _NORMS_BEHIND, window=True, windowed="olmo3"),
    "olmoe": Naming("olmoe", integers=MIXTURE),
    "exaone4": Naming("exaone4", _NORMS_BEHIND, window=True),
    "gpt-oss": Naming(
        "gpt_oss",
        layer={
            "attn_sinks.weight": "self_attn.sinks",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_gate_inp": "mlp.router",
        },
        window=True,
        integers=_LOCAL_EXPERTS,
    ),
    "phi3": Naming(
        "phi3",
        layer={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        window=True,
    ),
    "phimoe": Naming(
        "phimoe",
        layer=_SPARSE,
        integers=_LOCAL_EXPERTS,
    ),
    "glm4": Naming(
        "glm4",
        layer={
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
        },
        only={"rope.dimension_sections": (None,)},  # of models that also read pictures
    ),
    "glm4moe": Naming(
        "glm4_moe",
        layer={
            "post_attention_norm": "post_attention_layernorm",
            **_SHARED_EXPERT,
            "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
        },
        integers={
            "num_experts_per_tok": "expert_used_count",
            "n_routed_experts": "expert_count",
            "n_shared_experts": "expert_shared_count",
            "moe_intermediate_size": "expert_feed_forward_length",
        },
        present={"use_qk_norm": "attn_q_norm.weight"},
        only={
            "expert_gating_func": (2, None),  # sigmoids
            "rope.dimension_sections": (None,),  # of models that also read pictures
        },
    ),
    # DeepSeek-V2, GLM-4 MoE lite, and others that DeepSeek's computation fits.
    "deepseek2": Naming(
        "glm4_moe_lite",
        layer={**_LATENT, "exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
        log_multiplier=0.1,
        only={"expert_gating_func": (1, 2, None)},  # softmax, sigmoids
    ),
    "kimi-linear": Naming(
        "kimi_linear",
        layer={
            **_LATENT,
            **_SPARSE,
            "ffn_gate_shexp": "block_sparse_moe.shared_experts.gate_proj",
            "ffn_up_shexp": "block_sparse_moe.shared_experts.up_proj",
            "ffn_down_shexp": "block_sparse_moe.shared_experts.down_proj",
            "exp_probs_b.bias": "block_sparse_moe.gate.e_score_correction_bias",
            **{f"ssm_conv1d_{part}": f"self_attn.{part}_conv1d" for part in "qkv"},
            "ssm_f_a": "self_attn.f_a_proj",
            "ssm_f_b": "self_attn.f_b_proj",
            "ssm_g_a": "self_attn.g_a_proj",
            "ssm_g_b": "self_attn.g_b_proj",
            "ssm_beta": "self_attn.b_proj",
            "ssm_a": "self_attn.A_log",
            "ssm_dt.bias": "self_attn.dt_bias",
            "ssm_norm": "self_attn.o_norm",
        },
        only={"expert_gating_func": (2, None)},  # sigmoids
    ),
    "minicpm": Naming(
        "granite",
        interleaved=True,
        numbers={n: p for n, p in GRANITE.items() if n != "attention_multiplier"},
    ),
    # llama.cpp has MiniCPM3's factors in its code.
    "minicpm3": Naming("minicpm3", layer=_LATENT),
    "mistral4": Naming(
        "mistral4",
        layer=_LATENT,
        log_multiplier=0.1,
        only={"expert_gating_func": (1, None)},  # softmax
    ),
    "hunyuan-dense": Naming(
        "hunyuan_v1_dense",
        layer={
            "attn_q_norm": "self_attn.query_layernorm",
            "attn_k_norm": "self_attn.key_layernorm",
        },
    ),
    "stablelm": Naming(
        "stablelm",
        layer_norm=True,
        present={"use_qkv_bias": "attn_q.bias", "qk_layernorm": "attn_q_norm.weight"},
    ),
    "gemma": Naming("gemma", norm_offset=1.0),
    "gemma2": Naming(
        "gemma2",
        _NORMS_AROUND,
        norm_offset=1.0,
        window=True,
        widest=46,
        numbers={
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        constants={"sliding_window": 4096},  # the first files do not say
    ),
    "gemma3": _GEMMA3,
    "gemma-embedding": replace(
        _GEMMA3,
        constants={**_GEMMA3.constants, "use_bidirectional_attention": True},
        both_ways=True,
    ),
    "gemma3n": Naming(
        "gemma3n_text",
        {
            **_NORMS_AROUND,
            **_LAYER_INPUT,
            "altup_correct_coef": "altup.correction_coefs",
            "altup_correct_scale.weight": "altup.correct_output_scale",
            "altup_predict_coef": "altup.prediction_coefs",
            "altup_router": "altup.modality_router",
            "altup_router_norm": "altup.router_norm",
            "laurel_l": "laurel.linear_left",
            "laurel_r": "laurel.linear_right",
            "laurel_post_norm": "laurel.post_laurel_norm",
        },
        model={
            **_LAYER_INPUTS,
            "altup_proj": f"model.altup_projections.{NUMBER}",
            "altup_unembd_proj": f"model.altup_unembed_projections.{NUMBER}",
        },
        window=True,
    ),
    "gemma4": Naming(
        "gemma4_text",
        {
            **_NORMS_AROUND,
            "post_ffw_norm_1": "post_feedforward_layernorm_1",
            "post_ffw_norm_2": "post_feedforward_layernorm_2",
            "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
            "ffn_gate_inp.scale": "router.scale",
            "ffn_gate_inp": "router.proj",
            "ffn_gate_up_exps": f"{EXPERT[1:]}{BOTH}",
            "ffn_down_exps": f"{EXPERT[1:]}down_proj",
            "ffn_down_exps.scale": "router.per_expert_scale",
            "layer_output_scale.weight": "layer_scalar",
            **_LAYER_INPUT,
        },
        model=_LAYER_INPUTS,
        window=True,
    ),
}
"""What can be read, by `general.architecture`; Mistral's older models are stored as `llama`."""
