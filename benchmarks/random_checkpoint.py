"""Writes a random checkpoint in the sizes of a published model, to measure what its passes cost.

    python benchmarks/random_checkpoint.py gemma3-1b -o gemma
    python benchmarks/random_checkpoint.py qwen3-moe -o small --set num_hidden_layers=6

`edgespec export` and `pass_cost.py` read it. Its texts are noise. The vocabulary is smaller than
the model's, and so is the number of layers of some; the tokenizer has a word for each token.
`--set` changes a field of config.json, to a value in JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from edgespec.models.architectures import ARCHITECTURES
from edgespec.models.config import ModelConfig
from edgespec.models.fields import ConfigFields

_VOCABULARY = 16384
_CONFIGS: dict[str, dict[str, Any]] = {
    "gemma3-1b": {
        "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 256, "sliding_window": 512, "query_pre_attn_scalar": 256,
        "max_position_embeddings": 32768, "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
    },
    "qwen3.5-0.8b": {
        "model_type": "qwen3_5_text", "hidden_size": 1024, "intermediate_size": 3584,
        "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 4096, "tie_word_embeddings": True, "rope_theta": 1e7,
    },
    "qwen3-moe": {
        "model_type": "qwen3_moe", "hidden_size": 1024, "intermediate_size": 512,
        "moe_intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 10,
        "num_attention_heads": 16, "num_key_value_heads": 4, "num_experts": 64,
        "num_experts_per_tok": 4, "norm_topk_prob": True, "max_position_embeddings": 2048,
        "tie_word_embeddings": False, "rope_theta": 10000.0,
    },
}  # fmt: skip


def main() -> None:
    """Writes the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=_CONFIGS)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", dest="changes")
    arguments = parser.parse_args()
    changes = dict(change.split("=", 1) for change in arguments.changes)
    config = {"vocab_size": _VOCABULARY, **_CONFIGS[arguments.model]}
    config |= {name: json.loads(value) for name, value in changes.items()}
    architecture = ARCHITECTURES[config["model_type"]]
    fields = architecture.usual(
        ConfigFields(config, "config.json").with_defaults(architecture.defaults)
    )
    described = ModelConfig.from_fields(fields, ConfigFields({}, "generation_config.json"))
    rng = np.random.default_rng(0)
    tensors = {}
    for name, shape in architecture(described).decoder().tensors().items():
        values = rng.standard_normal(shape, np.float32) * np.float32(0.02)
        tensors[name] = values.astype(ml_dtypes.bfloat16)
    arguments.output.mkdir(parents=True)
    save_file(tensors, arguments.output / "model.safetensors", metadata={"format": "pt"})
    (arguments.output / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _tokenizer(config["vocab_size"]).save(str(arguments.output / "tokenizer.json"))


def _tokenizer(vocab_size: int) -> Tokenizer:
    """Creates a tokenizer with a word per token and byte-level decoding."""
    words = {f"Ġw{number}": number for number in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="Ġw0"))
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words_of_text = pre_tokenizers.Split(Regex(" w[0-9]+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words_of_text, bytes_of_words])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


if __name__ == "__main__":
    main()
