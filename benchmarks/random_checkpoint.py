"""Writes a random checkpoint in the sizes of a published model, to measure what its passes cost.

    python benchmarks/random_checkpoint.py gemma3-1b -o gemma
    python benchmarks/random_checkpoint.py gemma3-1b -o small --set num_hidden_layers=6

Its texts are noise. The vocabulary is smaller than the model's, and the tokenizer has a word for
each token. `--set` changes a field of config.json, to a value in JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from random_pair import RandomPair
from safetensors.numpy import save_file

from edgespec.models.checkpoint import ARCHITECTURES
from edgespec.models.config import ModelConfig
from edgespec.models.fields import Fields

_VOCABULARY = 16384
_CONFIGS: dict[str, dict[str, Any]] = {
    "gemma3-1b": {
        "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 256, "sliding_window": 512, "query_pre_attn_scalar": 256,
        "max_position_embeddings": 32768, "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
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
    fields = architecture.usual(Fields(config, "config.json").with_defaults(architecture.defaults))
    described = ModelConfig.from_fields(fields, Fields({}, "generation_config.json"))
    rng, tensors = np.random.default_rng(0), {}
    for name, shape in architecture(described).decoder().tensors().items():
        values = rng.standard_normal(shape, np.float32) * np.float32(0.02)
        tensors[name] = values.astype(ml_dtypes.bfloat16)
    arguments.output.mkdir(parents=True)
    save_file(tensors, arguments.output / "model.safetensors", metadata={"format": "pt"})
    (arguments.output / "config.json").write_text(json.dumps(config), encoding="utf-8")
    RandomPair(config["vocab_size"], 1.0).tokenizer().save(str(arguments.output / "tokenizer.json"))


if __name__ == "__main__":
    main()
