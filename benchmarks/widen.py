"""Widens a checkpoint: the outputs stay the same at the cost of a larger model.

    python benchmarks/widen.py python-7m -o wide-7m --hidden 3072 --intermediate 12288
    python benchmarks/widen.py python-1m -o wide-1m --hidden 1536 --intermediate 6144

write a target of 1145 M parameters and a draft of 77 M, both widened by the same factors: 12 for
the residual stream and the attention, 16 for the MLP. Such a pair generates real text at a
realistic cost; measurements with it are labelled "widened".

Zeros are appended to every dimension except the vocabulary. What depends on a size is rescaled:

* A mean of squares over D' values of which D are nonzero is smaller by D/D'. So RMSNorm's eps is
  multiplied by D/D', and its weight by sqrt(D/D').
* Scores are divided by sqrt(head_dim), so W_q is multiplied by sqrt(head_dim' / head_dim).
* RoPE rotates pair i of a head by theta^(-2i/head_dim). Pair i * head_dim'/head_dim of the larger
  head has the same angle, so it takes the values of pair i.
* New heads have values of zero, and the output projection ignores them.

Layers are never added: a layer that does nothing would make skipping layers look free.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from edgespec.errors import EdgespecError, InputError, UnsupportedModelError
from edgespec.models import ARCHITECTURES, Checkpoint, Decoder, ModelConfig, load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

# name -> (numpy's dtype, config.json's name of it)
DTYPES = {
    "bf16": (np.dtype(ml_dtypes.bfloat16), "bfloat16"),
    "fp32": (np.dtype(np.float32), "float32"),
}
_WIDENED = ("llama", "mistral", "qwen2")
_USUAL_HEAD_DIM = 128


@dataclass(frozen=True)
class WideShape:
    """The new sizes, none smaller than the checkpoint's.

    Attributes:
        hidden: Size of the residual stream.
        intermediate: Inner size of the MLP.
        head_dim: Size of a head, a multiple of the checkpoint's; None: 128 if that is a multiple,
            else unchanged.
        heads: Number of query heads; None: in proportion to kv_heads.
        kv_heads: Number of key and value heads; the ratio to query heads does not change. None: in
            proportion to heads, or if that is None too, to the residual stream.
    """

    hidden: int
    intermediate: int
    head_dim: int | None = None
    heads: int | None = None
    kv_heads: int | None = None


@dataclass(frozen=True)
class _Placement:
    """The indices of a tensor's values in the wide tensor, and their factor.

    Attributes:
        rows: Index of each row in the wide tensor; None: the first rows.
        columns: Index of each column in the wide tensor; None: the first columns.
        scale: Factor of all values.
    """

    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None
    scale: float = 1.0


def widen(source: Path, output: Path, shape: WideShape, dtype: str = "bf16") -> int:
    """Writes a widened copy of a checkpoint.

    Args:
        source: Folder of a Llama, Mistral or Qwen2 checkpoint.
        output: Folder to create.
        shape: The new sizes.
        dtype: Data type of the weights, one of `DTYPES`. Tensors whose factor is not a power of two
            are always stored in fp32, so that nothing is rounded a second time.

    Returns:
        The number of parameters written.

    Raises:
        InputError: A size shrinks or does not fit, or `output` exists.
        CheckpointError: The checkpoint is damaged.
        UnsupportedModelError: It is of another architecture.
    """
    checkpoint = load_checkpoint(source)
    if checkpoint.config.model_type not in _WIDENED:
        # Norms of heads share their epsilon with those of the residual stream, for example.
        raise UnsupportedModelError(
            f"{source}: model_type {checkpoint.config.model_type!r} is not supported: "
            f"use {', '.join(_WIDENED)}"
        )
    config = _wide_config(checkpoint.config, shape)
    if output.exists():
        raise InputError(f"{output} exists: choose another name, or delete it")
    output.mkdir(parents=True)
    decoder = ARCHITECTURES[config.model_type](config).decoder()
    _write_weights(checkpoint, decoder, _placements(checkpoint, config), output, DTYPES[dtype][0])
    for name in checkpoint.tokenizer_files:
        shutil.copyfile(source / name, output / name)
    parameters = sum(math.prod(wanted) for wanted in decoder.tensors().values())
    _describe(checkpoint, config, output, DTYPES[dtype][1], parameters)
    return parameters


def _wide_config(config: ModelConfig, shape: WideShape) -> ModelConfig:
    """Returns the config with the new sizes, checked and completed."""
    head_dim = shape.head_dim
    if head_dim is None:
        head_dim = config.head_dim if _USUAL_HEAD_DIM % config.head_dim else _USUAL_HEAD_DIM
    group = config.heads // config.kv_heads
    kv_heads = shape.kv_heads
    if kv_heads is None and shape.heads is not None:
        kv_heads = shape.heads // group
    if kv_heads is None:
        width = config.kv_heads * config.head_dim * shape.hidden / config.hidden_size
        kv_heads = max(config.kv_heads, round(width / head_dim))
    heads = kv_heads * group if shape.heads is None else shape.heads
    wide = dataclasses.replace(
        config,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        head_dim=head_dim,
        heads=heads,
        kv_heads=kv_heads,
        norm_eps=config.norm_eps * config.hidden_size / shape.hidden,
    )
    for name in ("hidden_size", "intermediate_size", "head_dim", "heads", "kv_heads"):
        asked, present = getattr(wide, name), getattr(config, name)
        if asked < present:
            raise InputError(f"{name} {asked} is below the checkpoint's: ask for {present} or more")
    if head_dim % config.head_dim:
        raise InputError(
            f"head_dim {head_dim} is not a multiple of the checkpoint's {config.head_dim}: "
            "only in a multiple does every RoPE pair find its frequency"
        )
    if heads != kv_heads * group:
        raise InputError(
            f"{heads} heads over {kv_heads} key and value heads: the checkpoint has {group} "
            "to each, ask for as many"
        )
    return wide


def _placements(checkpoint: Checkpoint, wide: ModelConfig) -> dict[str, _Placement]:
    """Returns the placements of tensors that need more than appended zeros, by name."""
    config, decoder = checkpoint.config, checkpoint.decoder
    growth = wide.head_dim // config.head_dim
    half = np.arange(config.head_dim // 2) * growth
    within_head = np.concatenate([half, wide.head_dim // 2 + half])

    def head_rows(heads: int) -> NDArray[np.int64]:
        starts = np.arange(heads)[:, None] * wide.head_dim
        rows: NDArray[np.int64] = (starts + within_head).ravel()
        return rows

    q_rows, kv_rows = head_rows(config.heads), head_rows(config.kv_heads)
    norm = _Placement(scale=math.sqrt(config.hidden_size / wide.hidden_size))
    placements = {decoder.norm.weight: norm}
    for sublayer in decoder.sublayers:
        if sublayer.norm is not None:
            placements[sublayer.norm.weight] = norm
    for attention in decoder.attentions:
        query = _Placement(q_rows, scale=math.sqrt(growth))
        placements.update(dict.fromkeys(attention.q.tensors(), query))
        for linear in attention.linears[1:-1]:
            placements.update(dict.fromkeys(linear.tensors(), _Placement(kv_rows)))
        placements[attention.o.weight] = _Placement(columns=q_rows)
    return placements


def _write_weights(
    checkpoint: Checkpoint,
    decoder: Decoder,
    placements: dict[str, _Placement],
    output: Path,
    dtype: np.dtype[np.generic],
) -> None:
    """Writes a shard per layer, and one before and one after them, to save memory."""
    shards = list(_shards(decoder))
    shapes = decoder.tensors()
    weight_map: dict[str, str] = {}
    total = 0
    for number, names in enumerate(shards, 1):
        tensors = {
            name: _wide_tensor(
                checkpoint.tensors.read(name),
                shapes[name],
                placements.get(name, _Placement()),
                dtype,
            )
            for name in names
        }
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(tensors, output / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(names, file))
        total += sum(tensor.nbytes for tensor in tensors.values())
    _write_json(
        output / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": weight_map},
    )


def _shards(decoder: Decoder) -> Iterator[list[str]]:
    yield [decoder.embedding]
    for attention, mlp in decoder.layers:
        yield [*attention.tensors(), *mlp.tensors()]
    head: Iterable[str] = () if decoder.tied else decoder.lm_head.tensors()
    yield [*decoder.norm.tensors(), *head]


def _wide_tensor(
    values: NDArray[np.float32],
    shape: tuple[int, ...],
    placement: _Placement,
    dtype: np.dtype[np.generic],
) -> NDArray[np.generic]:
    exact = math.frexp(placement.scale)[0] == 0.5
    wide = np.zeros(shape, dtype if exact else np.float32)
    indices = [
        np.arange(size) if index is None else index
        for size, index in zip(values.shape, (placement.rows, placement.columns), strict=False)
    ]
    wide[np.ix_(*indices)] = values * np.float32(placement.scale)
    return wide


def _describe(
    checkpoint: Checkpoint, wide: ModelConfig, output: Path, dtype: str, parameters: int
) -> None:
    """Writes the model card and config.json, last, since they complete the checkpoint."""
    name = checkpoint.path.resolve().name
    original = json.loads((checkpoint.path / "config.json").read_text(encoding="utf-8"))
    sizes = {
        "hidden_size": wide.hidden_size,
        "intermediate_size": wide.intermediate_size,
        "num_attention_heads": wide.heads,
        "num_key_value_heads": wide.kv_heads,
        "head_dim": wide.head_dim,
        "rms_norm_eps": wide.norm_eps,
    }
    (output / "README.md").write_text(
        f"# {name}, widened\n\n{parameters / 1e6:.0f} M parameters, nearly all of them zeros: the "
        f"outputs of {name} at the cost of the larger shape. For measurements, which say "
        '"widened"; made by `benchmarks/widen.py`.\n',
        encoding="utf-8",
    )
    original.pop("torch_dtype", None)
    marker = {"source": name, **{field: original.get(field) for field in sizes}}
    _write_json(output / "config.json", {**original, **sizes, "dtype": dtype, "widened": marker})


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Runs the command; see the module's docstring."""
    parser = argparse.ArgumentParser(description="The same outputs at the cost of a larger model.")
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to create")
    parser.add_argument("--hidden", type=int, required=True, help="size of the residual stream")
    parser.add_argument("--intermediate", type=int, required=True, help="inner size of the MLP")
    parser.add_argument("--head-dim", type=int, help="default: 128 where it is a multiple")
    parser.add_argument("--heads", type=int, help="default: as the residual stream grows")
    parser.add_argument("--kv-heads", type=int, help="default: in proportion to the heads")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="default: bf16")
    arguments = parser.parse_args()
    shape = WideShape(
        arguments.hidden,
        arguments.intermediate,
        arguments.head_dim,
        arguments.heads,
        arguments.kv_heads,
    )
    try:
        parameters = widen(arguments.checkpoint, arguments.output, shape, arguments.dtype)
    except EdgespecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{arguments.output}: {parameters:,} parameters, widened from {arguments.checkpoint}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
