"""GGUF files of random draft heads, as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from converted import converted
from gguf import GGUFWriter
from gguf_numbers import numbers_of
from ggufs import add_field, frequencies_of

from edgespec.models.formats.safetensors_folder import SafetensorsFolder

_MODEL = {
    "fc": "fc", "hidden_norm": "enc.output_norm", "norm": "output_norm", "lm_head": "output",
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
    "post_attention_layernorm": "ffn_norm", "hidden_norm": "attn_norm_2",
    "attention_conv.kernel_projection": "attn_conv_proj",
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
    given = {
        **_sizes(config),
        "target_layers": [each + 1 for each in group["target_layer_ids"]],
        **{
            name: config.get(name)
            for name in (
                "block_size",
                "conv_kernel_size",
                "conv_group_size",
                "selector_rank",
                "selector_top_k",
            )
        },
    }
    if "markov_rank" in config:
        given["sample_from_anchor"], given["has_confidence_head"] = True, True
    if "layer_types" in config:
        given["attention.sliding_window"] = config["sliding_window"]
        given["attention.sliding_window_pattern"] = [
            each == "sliding_attention" for each in config["layer_types"]
        ]
    tensors = {_place(name): values.numpy() for name, values in weights.items() if name != "d2t"}
    if "d2t" in weights:
        tensors["d2t"] = _ids(weights["d2t"])
    _write(file, "dflash", {**given, **fields}, config["vocab_size"], tensors, group)


def write_gguf_eagle3(
    file: Path, weights: dict[str, torch.Tensor], config: dict[str, Any], **fields: Any
) -> None:
    """Writes the file of a head of `write_head` in the layout of `speculators`; see above."""
    layer = config["transformer_layer_config"]
    heads = {"q": layer["num_attention_heads"], "k": layer["num_key_value_heads"]}
    given = {
        **_sizes(layer),
        "target_layers": [2, 4, 5],
        "target_hidden_size": layer["hidden_size"],
        "norm_before_residual": config["norm_before_residual"],
        "norm_before_fc": config.get("norm_before_fc", False),
    }
    tensors = {}
    for name, values in weights.items():
        part = name.rpartition("self_attn.")[2].partition("_proj")[0]
        if name == "d2t":
            tensors[name] = _ids(values)
        elif name == "input_norm.weight":
            tensors["enc.output_norm.weight"] = values.numpy()
        elif "lm_head" in name:
            tensors["output.weight"] = values.numpy()
        elif part in heads:  # dimensions that turn together are neighbours
            halves = values.view(heads[part], 2, -1, values.shape[1]).transpose(1, 2)
            tensors[_place(name)] = halves.reshape(values.shape).contiguous().numpy()
        elif name != "t2d":
            tensors[_place(name)] = values.numpy()
    _write(file, "eagle3", {**given, **fields}, layer["vocab_size"], tensors, {})


def write_gguf_assistant(file: Path, folder: Path, **fields: Any) -> None:
    """Writes the file of an assistant of `write_assistant`, without its clusters; see above."""
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    given = {
        name.removeprefix("gemma4."): value for name, value in numbers_of("gemma4", text).items()
    }
    given["embedding_length_out"] = config["backbone_hidden_size"]
    given["nextn_predict_layers"] = text["num_hidden_layers"]
    stored = SafetensorsFolder(folder)
    read = {
        name: stored.read(name)
        for name in sorted(stored.names)
        if name != "lm_head.weight" and "token_ordering" not in name and "centroids" not in name
    }
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, text["num_hidden_layers"])
    tensors = frequencies_of(text)
    for name, values in converted("gemma4", read, text):
        place = names.get_name(name, try_suffixes=(".weight", ".bias")) or name
        tensors[f"nextn.{name}" if "_projection" in name else place] = values
    _write(file, "gemma4-assistant", {**given, **fields}, text["vocab_size"], tensors, {})


def _sizes(layer: dict[str, Any]) -> dict[str, Any]:
    """Fields of the layers of a head."""
    return {
        "block_count": layer["num_hidden_layers"],
        "context_length": 512,
        "embedding_length": layer["hidden_size"],
        "feed_forward_length": layer["intermediate_size"],
        "attention.head_count": layer["num_attention_heads"],
        "attention.head_count_kv": layer["num_key_value_heads"],
        "attention.key_length": layer["head_dim"],
        "attention.value_length": layer["head_dim"],
        "attention.layer_norm_rms_epsilon": layer["rms_norm_eps"],
        "rope.freq_base": layer["rope_theta"],
    }


def _write(
    file: Path,
    kind: str,
    fields: dict[str, Any],
    tokens: int,
    tensors: dict[str, Any],
    group: dict[str, Any],
) -> None:
    writer = GGUFWriter(str(file), kind)
    for name, value in fields.items():
        add_field(writer, f"{kind}.{name}", value)
    add_field(writer, "tokenizer.ggml.tokens", [str(n) for n in range(tokens)])
    add_field(writer, "tokenizer.ggml.mask_token_id", group.get("mask_token_id"))
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _ids(offsets: torch.Tensor) -> Any:
    """What `d2t` holds in these files: ids, and not how far they lie behind their numbers."""
    return (offsets + torch.arange(len(offsets))).numpy()


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
