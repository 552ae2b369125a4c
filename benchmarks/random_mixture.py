"""Writes a random Qwen3-MoE checkpoint, to measure what passes of a mixture cost.

    python benchmarks/random_mixture.py -o FOLDER --layers 10 --experts 64 --chosen 4

Its texts are noise, and rows behind the same text choose similar experts: eight rows with different
tokens 11.6 of 64 a layer, in the mean. With --by-token, rows choose by their tokens alone, whatever
came before, and eight of them 26.5, which is the dearest case. The tokenizer has a word for each
token.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
from random_pair import RandomPair
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_VOCABULARY, _HIDDEN, _WIDTH, _HEADS, _KV_HEADS, _HEAD = 16384, 1024, 512, 16, 4, 64

_EMBEDDING = "model.embed_tokens.weight"
_LOUD = np.float32(1024)  # makes what layers add to a token's row small beside it


def shapes(layers: int, experts: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields names and shapes of all tensors."""
    yield _EMBEDDING, (_VOCABULARY, _HIDDEN)
    yield "lm_head.weight", (_VOCABULARY, _HIDDEN)
    yield "model.norm.weight", (_HIDDEN,)
    for layer in range(layers):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.{norm}.weight", (_HIDDEN,)
        for norm in ("q_norm", "k_norm"):
            yield f"{name}.self_attn.{norm}.weight", (_HEAD,)
        yield f"{name}.self_attn.q_proj.weight", (_HEADS * _HEAD, _HIDDEN)
        yield f"{name}.self_attn.k_proj.weight", (_KV_HEADS * _HEAD, _HIDDEN)
        yield f"{name}.self_attn.v_proj.weight", (_KV_HEADS * _HEAD, _HIDDEN)
        yield f"{name}.self_attn.o_proj.weight", (_HIDDEN, _HEADS * _HEAD)
        yield f"{name}.mlp.gate.weight", (experts, _HIDDEN)
        for expert in range(experts):
            own = f"{name}.mlp.experts.{expert}"
            yield f"{own}.gate_proj.weight", (_WIDTH, _HIDDEN)
            yield f"{own}.up_proj.weight", (_WIDTH, _HIDDEN)
            yield f"{own}.down_proj.weight", (_HIDDEN, _WIDTH)


def main() -> None:
    """Writes the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--chosen", type=int, default=4, help="experts that a row is read by")
    parser.add_argument(
        "--by-token", action="store_true", help="route rows by their tokens, whatever came before"
    )
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    tensors = {}
    for name, shape in shapes(arguments.layers, arguments.experts):
        values = np.ones(shape, np.float32)
        if len(shape) == 2:
            values = rng.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
        if arguments.by_token and name == _EMBEDDING:
            values *= _LOUD
        tensors[name] = values.astype(ml_dtypes.bfloat16)
    arguments.output.mkdir(parents=True)
    save_file(tensors, arguments.output / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "qwen3_moe", "vocab_size": _VOCABULARY, "hidden_size": _HIDDEN,
        "intermediate_size": _WIDTH, "moe_intermediate_size": _WIDTH, "head_dim": _HEAD,
        "num_hidden_layers": arguments.layers, "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS, "num_experts": arguments.experts,
        "num_experts_per_tok": arguments.chosen, "norm_topk_prob": True,
        "max_position_embeddings": 2048, "tie_word_embeddings": False, "rope_theta": 10000.0,
    }  # fmt: skip
    (arguments.output / "config.json").write_text(json.dumps(config), encoding="utf-8")
    RandomPair(_VOCABULARY, 1.0).tokenizer().save(str(arguments.output / "tokenizer.json"))


if __name__ == "__main__":
    main()
