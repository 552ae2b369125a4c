"""Tensors of checkpoints as llama.cpp's converter stores them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Values = np.ndarray[Any, np.dtype[np.float32]]

_EXPERT = re.compile(r"(.+\.\w+\.experts\.)(\d+)\.(\w+\.weight)")
_STREAM = re.compile(r"model\.(altup_\w+\.)(\d+)(\.weight)")
_DENSE = re.compile(r"\.block_sparse_moe\.(\w+_proj)\.")  # as transformers calls MLPs of Kimi
_NEXTN = {
    "fc": "eh_proj", "norm": "shared_head_norm", "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
}  # fmt: skip
_TURNED = (
    "arcee", "granite", "granitehybrid", "granitemoe", "llama", "minicpm", "mistral3", "smollm3",
)  # fmt: skip
_ONE_MORE = ("gemma", "gemma-embedding", "gemma2", "gemma3", "qwen35", "qwen35moe", "qwen3next")
_V_ROWS = ("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")


def converted(
    kind: str, tensors: Mapping[str, Values], config: dict[str, Any]
) -> Iterator[tuple[str, Values]]:
    """Yield names, as the `gguf` package knows them, and values of all tensors of a file.

    Args:
        kind: The architecture's name in GGUF.
        tensors: The checkpoint's tensors.
        config: Its config.json.
    """
    experts = dict[str, dict[int, Values]]()
    last = config.get("num_hidden_layers")
    for own_name, values in tensors.items():
        name = own_name.replace("mtp.layers.0", f"model.layers.{last}")
        name = _DENSE.sub(r".mlp.\1.", name)
        match = _EXPERT.fullmatch(name) or _STREAM.fullmatch(name)
        if match is not None:
            experts.setdefault(match[1] + match[3], {})[int(match[2])] = values
        elif kind == "gemma4" and name.endswith((".gate_up_proj", ".experts.down_proj")):
            yield f"{name}.weight", values
        elif name.endswith((".router.scale", ".per_expert_scale")):
            block = name.split(".")[2]
            place = "gate_inp" if "router.scale" in name else "down_exps"
            yield f"blk.{block}.ffn_{place}.scale", values
        elif name.startswith("mtp."):
            stem = name.removeprefix("mtp.").removesuffix(".weight")
            yield f"blk.{last}.nextn.{_NEXTN[stem]}.weight", values + (values.ndim == 1)
        elif "kv_b_proj" in name and kind != "minicpm3":
            heads = config["num_attention_heads"]
            still = config["qk_nope_head_dim"]
            both = values.reshape(heads, -1, values.shape[1])
            yield name.replace("kv_b_proj", "k_b_proj"), both[:, :still].swapaxes(1, 2)
            yield name.replace("kv_b_proj", "v_b_proj"), both[:, still:]
        elif name.endswith(".in_proj_qkvz.weight"):
            yield from _apart(name, values, config)
        elif name.endswith(".shared_expert_gate.weight"):
            yield name, values[0]
        elif ".experts." in name:
            yield from _stack(kind, name, values)
        elif ".input_linear" in name or ".output_linear" in name:
            yield from _granite(name, values, bool(config.get("num_local_experts")))
        else:
            own = name.replace(".mixer.dt_bias", ".mixer.dt.bias")
            own = own.replace("attn_sub_norm", "inner_attn_ln")
            own = own.replace("ffn_sub_norm", "ffn_layernorm")
            own = own.replace(".dt_bias", ".dt_proj.bias")
            own = own.replace("correction_bias", "correction")
            own += ".bias" if own.endswith(("expert_bias", "e_score_correction")) else ""
            whole = ("sinks", "layer_scalar", "correct_output_scale")
            own += ".weight" if own.endswith(whole) else ""
            vector = values[0] if ".moe_statics." in name else values
            yield own, _stored(kind, name, vector, config)
    for name, each in experts.items():
        own = name.removeprefix("model.") if ".feed_forward." in name else name
        own = own.replace("altup_unembed_projections..", "altup_unembd_proj.")
        own = own.replace("altup_projections..", "altup_proj.")
        own = own.replace("backbone.layers", "model.layers").replace(".mixer.", ".mlp.")
        yield own, np.stack([each[number] for number in sorted(each)])


def _times_factors(name: str, values: Values, config: dict[str, Any]) -> Values:
    """A tensor of Falcon-H1 times the factors of what it reads and gives."""
    gate, down = config["mlp_multipliers"]
    read = config["attention_in_multiplier"]
    factors = {
        "q_proj": read,
        "k_proj": read * config["key_multiplier"],
        "v_proj": read,
        "o_proj": config["attention_out_multiplier"],
        "in_proj": config["ssm_in_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "gate_proj": gate,
        "down_proj": down,
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    values = values * np.float32(factors.get(name.split(".")[-2], 1.0))
    if name.endswith(".in_proj.weight"):
        keys = config["mamba_n_groups"] * config["mamba_d_state"]
        width = config["mamba_d_ssm"]
        sizes = [width, width, keys, keys, config["mamba_n_heads"]]
        values *= np.repeat(np.float32(config["ssm_multipliers"]), sizes)[:, None]
    return values


def _apart(name: str, values: Values, config: dict[str, Any]) -> Iterator[tuple[str, Values]]:
    """Queries, keys and values of all heads of linear attention, and their gates."""
    keys = config["linear_num_key_heads"]
    size = config["linear_key_head_dim"]
    width = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    heads = values.reshape(keys, -1, values.shape[1])
    parts = np.split(heads, np.cumsum([size, size, width]), axis=1)
    *mixed, gate = (each.reshape(-1, values.shape[1]) for each in parts)
    yield name.replace("qkvz", "qkv"), np.concatenate(mixed)
    yield name.replace("qkvz", "z"), gate


def _stack(kind: str, name: str, values: Values) -> Iterator[tuple[str, Values]]:
    """A stack of experts' matrices, with gate above up.

    Those of Llama 4 and gpt-oss lie as [in, out], and of the latter gate and up by turns.
    """
    if kind == "llama4":
        values = values.swapaxes(1, 2)
    if kind in ("llama4", "qwen3vlmoe") and "gate_up" in name:
        for part, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
            yield f"{name.replace('gate_up', part)}.weight", half
        return
    if kind != "gpt-oss":
        yield f"{name}.weight", values
        return
    suffix = ".bias" if name.endswith("_bias") else ".weight"
    if suffix == ".weight":
        values = values.swapaxes(1, 2)
    stem = name.removesuffix("_bias")
    if "gate_up" not in name:
        yield stem + suffix, values
        return
    for start, part in enumerate(("gate", "up")):
        yield stem.replace("gate_up", part) + suffix, values[:, start::2]


def _granite(name: str, values: Values, experts: bool) -> Iterator[tuple[str, Values]]:
    """The MLP of a Granite's layer, or its experts, with gate and up in one tensor."""
    block = name.split(".")[2]
    shared = ".shared_mlp." in name
    ending = ("_shexp" if shared else "_exps") if experts else ""
    if ".output_linear" in name:
        yield f"blk.{block}.ffn_down{ending}.weight", values
        return
    for part, half in zip(("gate", "up"), np.split(values, 2, axis=-2), strict=True):
        yield f"blk.{block}.ffn_{part}{ending}.weight", half


def _stored(kind: str, name: str, values: Values, config: dict[str, Any]) -> Values:
    if kind == "falcon-h1":
        values = _times_factors(name, values, config)
    if kind in _TURNED and ("q_proj" in name or "k_proj" in name):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        halves = values.reshape(heads, 2, -1, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)
    if kind == "kimi-linear" and name.endswith(("conv1d.weight", ".A_log")):
        return -np.exp(values) if name.endswith("A_log") else values[None]
    if name.endswith((".conv.conv.weight", ".conv1d.weight")):
        values = values[:, 0]
    if name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
        return values.reshape(config.get("mamba_n_groups") or config["n_groups"], -1)
    if (".mamba." in name or ".mixer." in name) and name.endswith((".A_log", ".D")):
        return (-np.exp(values) if name.endswith("A_log") else values)[:, None]
    if ".linear_attn." in name:
        values = -np.exp(values) if name.endswith("A_log") else values
        return values if kind == "qwen3next" else _tiled(name, values, config)
    one_more = kind in _ONE_MORE and name.endswith("norm.weight")
    return values + 1 if one_more else values


def _tiled(name: str, values: Values, config: dict[str, Any]) -> Values:
    """Value heads by their place in the group of a key head, and not group by group."""
    keys = config["linear_num_key_heads"]
    heads = config["linear_num_value_heads"]

    def tiled(rows: Values) -> Values:
        grouped = rows.reshape(keys, heads // keys, -1, *rows.shape[1:])
        return grouped.swapaxes(0, 1).reshape(rows.shape)

    if name.endswith(_V_ROWS):
        return tiled(values)
    if name.endswith("out_proj.weight"):
        return tiled(values.T).T
    if "in_proj_qkv" in name or "conv1d" in name:
        before = 2 * keys * config["linear_key_head_dim"]
        return np.concatenate([values[:before], tiled(values[before:])])
    return values
