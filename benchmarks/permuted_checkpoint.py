"""Writes a checkpoint that computes the same with its columns in another order.

    python benchmarks/permuted_checkpoint.py qwen-coder-0.5b -o permuted

A model that is only available quantized, in blocks of neighbouring columns, is not a fair test of
quantization: formats with the same blocks find almost the same numbers again. This script permutes
the columns of the residual stream, of each MLP and of each head's values, and everything that reads
or writes them. The weights are the same numbers, and the model computes the same except for the
order of sums, but the old blocks are scattered.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from common import exit_code

from edgespec.errors import InputError
from edgespec.models import Attention, Mlp, SafetensorsFolder, load_checkpoint

if TYPE_CHECKING:
    from edgespec.models import Checkpoint, Linear

    Values = np.ndarray[Any, np.dtype[Any]]
    Order = np.ndarray[Any, np.dtype[np.int64]]


class Permuted:
    """The tensors of a checkpoint with permuted columns.

    Args:
        checkpoint: The checkpoint.
        seed: Seed of the permutation.

    Attributes:
        tensors: The tensors by name, in half precision.
    """

    def __init__(self, checkpoint: Checkpoint, seed: int) -> None:
        self._read = checkpoint.tensors.read
        self._random = np.random.default_rng(seed)
        decoder = checkpoint.decoder
        self._stream = self._random.permutation(decoder.hidden_size)
        self.tensors: dict[str, Values] = {}
        for name in {decoder.embedding, decoder.lm_head.weight}:
            self._put(name, self._read(name)[:, self._stream])
        self._put(decoder.norm.weight, self._read(decoder.norm.weight)[self._stream])
        for sublayer in decoder.sublayers:
            if sublayer.norm is not None:
                self._put(sublayer.norm.weight, self._read(sublayer.norm.weight)[self._stream])
            if not isinstance(sublayer, Attention | Mlp):
                raise NotImplementedError("only attention and MLPs are permuted")
            if isinstance(sublayer, Attention):
                self._attention(sublayer)
            else:
                self._mlp(sublayer)

    def _attention(self, layer: Attention) -> None:
        size, group = layer.head_dim, layer.heads // layer.kv_heads
        orders = [self._random.permutation(size) for _ in range(layer.kv_heads)]
        values = np.concatenate([head * size + order for head, order in enumerate(orders)])
        mixed = [head * size + orders[head // group] for head in range(layer.heads)]
        *turned, own_values, out = layer.linears
        for each in turned:  # by RoPE, two by two
            self._linear(each, slice(None), self._stream)
            for norm in (layer.q_norm, layer.k_norm):
                if norm is not None:
                    self._put(norm.weight, self._read(norm.weight))
        self._linear(own_values, values, self._stream)
        self._linear(out, self._stream, np.concatenate(mixed))

    def _mlp(self, layer: Mlp) -> None:
        inner = self._random.permutation(layer.gate.out_features)
        self._linear(layer.gate, inner, self._stream)
        self._linear(layer.up, inner, self._stream)
        self._linear(layer.down, self._stream, inner)

    def _linear(self, layer: Linear, rows: Order | slice, columns: Order) -> None:
        self._put(layer.weight, self._read(layer.weight)[rows][:, columns])
        if layer.bias is not None:
            self._put(layer.bias, self._read(layer.bias)[rows])

    def _put(self, name: str, values: Values) -> None:
        self.tensors[name] = np.ascontiguousarray(values, np.float16)


def main() -> None:
    from safetensors.numpy import save_file

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to create")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    checkpoint = load_checkpoint(arguments.checkpoint)
    if not isinstance(checkpoint.tensors, SafetensorsFolder):
        raise InputError(
            f"{arguments.checkpoint}: its tensors have other names and orders than their "
            "description: give a checkpoint that is stored like Llama's"
        )
    tensors = Permuted(checkpoint, arguments.seed).tensors
    arguments.output.mkdir(parents=True)
    save_file(tensors, arguments.output / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", *checkpoint.tokenizer_files):
        shutil.copyfile(checkpoint.path / name, arguments.output / name)


if __name__ == "__main__":
    sys.exit(exit_code(main))
