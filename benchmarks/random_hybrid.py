"""Writes a random Qwen3.5 checkpoint, to measure what passes of a model with states cost.

    python benchmarks/random_hybrid.py -o hybrid --attention-every 4
    python benchmarks/random_hybrid.py -o attention --attention-every 1
    edgespec export hybrid -o hybrid-bundle --precision int4-small --no-calibration
    edgespec export attention -o attention-bundle --precision int4-small --no-calibration
    python benchmarks/mixture.py hybrid-bundle attention-bundle

Its sizes are those of Qwen3.5-0.8B, with a smaller vocabulary and fewer layers. The tokenizer has a
word for each token.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import ml_dtypes
import numpy as np
from random_pair import RandomPair
from safetensors.numpy import save_file

from edgespec.models.config import ModelConfig
from edgespec.models.families.qwen3_5 import Qwen3_5
from edgespec.models.fields import Fields

_VOCABULARY = 16384
_CONFIG = {
    "model_type": "qwen3_5_text", "vocab_size": _VOCABULARY, "hidden_size": 1024,
    "intermediate_size": 3584, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096, "tie_word_embeddings": True, "rope_theta": 1e7,
}  # fmt: skip


def main() -> None:
    """Writes the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument(
        "--attention-every", type=int, default=4, help="1: all layers have attention"
    )
    arguments = parser.parse_args()
    config = {
        **_CONFIG,
        "num_hidden_layers": arguments.layers,
        "full_attention_interval": arguments.attention_every,
    }
    fields = Qwen3_5.usual(Fields(config, "config.json").with_defaults(Qwen3_5.defaults))
    described = ModelConfig.from_fields(fields, Fields({}, "generation_config.json"))
    rng, tensors = np.random.default_rng(0), {}
    for name, shape in Qwen3_5(described).decoder().tensors().items():
        values = rng.standard_normal(shape, np.float32) * np.float32(0.02)
        tensors[name] = values.astype(ml_dtypes.bfloat16)
    arguments.output.mkdir(parents=True)
    save_file(tensors, arguments.output / "model.safetensors", metadata={"format": "pt"})
    (arguments.output / "config.json").write_text(json.dumps(config), encoding="utf-8")
    RandomPair(_VOCABULARY, 1.0).tokenizer().save(str(arguments.output / "tokenizer.json"))


if __name__ == "__main__":
    main()
