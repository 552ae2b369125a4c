"""GGUF files of random drafters of blocks, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gguf import GGUFWriter
from ggufs import add_field

_MODEL = {
    "fc": "fc", "hidden_norm": "enc.output_norm", "norm": "output_norm",
    "markov_head.markov_w1": "markov_w1", "markov_head.markov_w2": "markov_w2",
    "confidence_head.proj": "conf_proj",
    "candidate_selector.hidden_projection": "selector_hidden",
}  # fmt: skip
_WHOLE = {
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
}
_LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "attention_conv.kernel_projection": "attn_conv_proj",
    "mlp_conv.kernel_projection": "ffn_conv_proj",
}  # fmt: skip
_BASES = {"attention_conv.base_kernel": "attn_conv_base", "mlp_conv.base_kernel": "ffn_conv_base"}


def write_gguf_block(
    file: Path, weights: dict[str, torch.Tensor], config: dict[str, Any], **fields: Any
) -> None:
    """Writes the file of a drafter of `write_block` in the flat layout.

    Args:
        file: file to write.
        weights: its weights.
        config: its config.
        fields: fields to set, by their names behind `dflash.`; None leaves one out.
    """
    group = config["dflash_config"]
    given: dict[str, Any] = {
        "block_count": config["num_hidden_layers"], "context_length": 512,
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
        "target_layers": [each + 1 for each in group["target_layer_ids"]],
        **{
            name: config.get(name)
            for name in (
                "block_size", "conv_kernel_size", "conv_group_size", "selector_rank",
                "selector_top_k",
            )
        },
    }  # fmt: skip
    if "markov_rank" in config:
        given["sample_from_anchor"], given["has_confidence_head"] = True, True
    if "layer_types" in config:
        given["attention.sliding_window"] = config["sliding_window"]
        given["attention.sliding_window_pattern"] = [
            each == "sliding_attention" for each in config["layer_types"]
        ]
    writer = GGUFWriter(str(file), "dflash")
    for name, value in {**given, **fields}.items():
        add_field(writer, f"dflash.{name}", value)
    add_field(writer, "tokenizer.ggml.tokens", [str(n) for n in range(config["vocab_size"])])
    add_field(writer, "tokenizer.ggml.mask_token_id", group["mask_token_id"])
    for name, values in weights.items():
        writer.add_tensor(_place(name), values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _place(name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    stem, _, kind = name.rpartition(".")
    if not name.startswith("layers."):
        return f"{_MODEL[stem]}.{kind}"
    _, number, rest = name.split(".", 2)
    if rest in _BASES:
        return f"blk.{number}.{_BASES[rest]}"
    return f"blk.{number}.{_LAYER[rest.rpartition('.')[0]]}.{kind}"
