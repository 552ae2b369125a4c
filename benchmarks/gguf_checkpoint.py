"""Converts a GGUF file of llama.cpp to a checkpoint in fp16, with its tokenizer.

    python benchmarks/gguf_checkpoint.py SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2-135m

It is for models that are only available as GGUF. Quantized weights are widened to fp16, and tests
and benchmarks treat the result as the original model. Needs `pip install "edgespec[real]"`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from common import exit_code
from peers.gguf_file import gguf_names, halved, heads_to_interleave

from edgespec.errors import CheckpointError, InputError
from edgespec.models import ARCHITECTURES, Decoder, ModelConfig
from edgespec.models.fields import Fields

if TYPE_CHECKING:
    Values = np.ndarray[Any, np.dtype[np.float16]]

_NUMBERS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
"""Fields of config.json, and what follows the architecture's name in a GGUF file."""

_TOKENS = ("bos_token_id", "eos_token_id")
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


class GgufFile:
    """A model in a GGUF file.

    Args:
        path: The file.

    Attributes:
        config: The content of config.json.
        decoder: The description of the model.

    Raises:
        InputError: `gguf` is not installed.
        CheckpointError: It is not a GGUF file, or the model is not supported.
    """

    def __init__(self, path: Path) -> None:
        try:
            from gguf import GGUFReader
        except ImportError:
            raise InputError('gguf is needed: pip install "edgespec[real]"') from None
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise CheckpointError(f"{path} cannot be read as GGUF ({error})") from error
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.config = self._config()
        self.decoder = self._decoder()

    def weights(self) -> dict[str, Values]:
        """Reads all tensors of the checkpoint, by name.

        Raises:
            CheckpointError: The file's tensors are not those of the decoder.
        """
        from gguf import quants

        names = gguf_names(self.decoder)
        if odd := sorted(self._tensors.keys() ^ set(names.values())):
            raise CheckpointError(
                f"{self._path}: {odd[0]} is in the file or in a {self.config['model_type']} "
                "decoder, but not in both: use another file"
            )
        heads = heads_to_interleave(str(self.config["model_type"]), self.decoder)
        weights = {}
        for name, place in names.items():
            tensor = self._tensors[place]
            values = quants.dequantize(tensor.data, tensor.tensor_type)
            values = values.reshape([int(size) for size in reversed(tensor.shape)])
            if name in heads:
                values = halved(values, heads[name])
            weights[name] = values.astype(np.float16)
        return weights

    def _config(self) -> dict[str, object]:
        kind = self._field("general.architecture")
        if kind not in ARCHITECTURES:
            raise CheckpointError(
                f"{self._path}: architecture {kind!r} is not supported: "
                f"use one of {', '.join(ARCHITECTURES)}"
            )
        scaling = self._field(f"{kind}.rope.scaling.type")
        if scaling not in (None, "none"):
            raise CheckpointError(
                f"{self._path}: RoPE scaled by {scaling!r} is not supported: use another file"
            )
        numbers = {name: self._field(f"{kind}.{place}") for name, place in _NUMBERS.items()}
        tokens = {name: self._field(f"tokenizer.ggml.{name}") for name in _TOKENS}
        rows = [int(t.shape[-1]) for name, t in self._tensors.items() if name == _EMBEDDING]
        config = {
            "model_type": kind,
            "vocab_size": rows[0] if rows else None,
            "tie_word_embeddings": _HEAD not in self._tensors,
            "torch_dtype": "float16",
            **numbers,
            **tokens,
        }
        return {name: value for name, value in config.items() if value is not None}

    def _field(self, name: str) -> Any:
        """Returns a value of the file; None if there is none of that name."""
        field = self._reader.fields.get(name)
        value = None if field is None else field.contents()
        # Stored in 32 bits: what was meant is the shortest number that they hold.
        return float(str(np.float32(value))) if isinstance(value, float) else value

    def _decoder(self) -> Decoder:
        architecture = ARCHITECTURES[str(self.config["model_type"])]
        fields = Fields(self.config, str(self._path)).with_defaults(architecture.defaults)
        return architecture(ModelConfig.from_fields(fields, Fields({}, ""))).decoder()


def main() -> None:
    parser = argparse.ArgumentParser(description="A GGUF file as a checkpoint in fp16.")
    parser.add_argument("file", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to create")
    arguments = parser.parse_args()
    if arguments.output.exists():
        parser.error(f"{arguments.output} exists: give another folder, or remove it")
    file = GgufFile(arguments.file)
    weights = file.weights()
    arguments.output.mkdir(parents=True)
    _write(file.config, weights, arguments.file, arguments.output)


def _write(config: dict[str, object], weights: dict[str, Values], file: Path, folder: Path) -> None:
    from safetensors.numpy import save_file
    from transformers import AutoTokenizer

    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(file.absolute().parent, gguf_file=file.name)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(exit_code(main))
