r"""Writes a GGUF file of random bits in the sizes of a published model, to measure what it takes.

    python benchmarks/random_gguf.py 27b IQ1_S -o large.gguf --layers 16
    edgespec plan large.gguf
    edgespec export large.gguf -o large && python benchmarks/memory.py large --contexts 512
    python benchmarks/pass_cost.py large --gguf large.gguf --peers ik_llama.cpp

Its texts are noise, and it has 4,096 words. Norms and routers are in F32, the embedding in Q4_K,
the output in Q6_K, and all other matrices in the encoding. No quantizer is needed, as any bits are
weights.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from common import count
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_VOCABULARY = 4096
_HEAD_DIM = 128
_CONTEXT = 32768
_PART = 1 << 26  # bytes that are written at once
# Where a block has its scale in half precision, and one that keeps weights at about 0.02.
_SCALES = {
    "Q1_0": (0, 0.02),
    "TQ1_0": (52, 0.02), "TQ2_0": (64, 0.02), "IQ1_S": (0, 3e-3), "IQ2_XXS": (0, 4e-4),
    "IQ2_XS": (0, 4e-4), "IQ2_S": (0, 4e-4), "IQ3_XXS": (0, 8e-5), "IQ3_S": (0, 2e-4),
    "Q4_K": (0, 1e-4), "Q6_K": (208, 4e-5), "Q8_0": (0, 3e-4), "IQ4_XS": (0, 2e-5),
}  # fmt: skip


@dataclass(frozen=True)
class _Sizes:
    """Sizes of a model: Qwen3's layers, or those with experts where there are some."""

    hidden: int
    layers: int
    heads: int
    key_heads: int
    units: int
    experts: int = 0
    chosen: int = 0


_MODELS = {
    "0.6b": _Sizes(1024, 28, 16, 8, 3072),
    "27b": _Sizes(5120, 64, 24, 8, 17408),
    "30b-a3b": _Sizes(2048, 48, 32, 4, 768, 128, 8),
}


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=_MODELS)
    parser.add_argument("encoding", choices=_SCALES)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--layers", type=count, help="fewer than the model has")
    given = parser.parse_args()
    sizes = _MODELS[given.model]
    layers = given.layers or sizes.layers
    writer = GGUFWriter(given.output, "qwen3moe" if sizes.experts else "qwen3")
    _add_facts(writer, sizes, layers)
    tensors = list(_tensors(sizes, layers, given.encoding))
    for name, shape, encoding in tensors:
        kind = GGMLQuantizationType[encoding]
        block, size = GGML_QUANT_SIZES[kind]
        stored = *shape[:-1], shape[-1] // block * size
        if encoding == "F32":
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
        else:
            nbytes = int(np.prod(stored))
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    file: Any = writer.fout[0]
    writer.write_padding(file, file.tell())
    for _, shape, encoding in tensors:
        begin = file.tell()
        for part in _parts(int(np.prod(shape)), encoding):
            file.write(part)
        writer.write_padding(file, file.tell() - begin)
    writer.close()


def _add_facts(writer: GGUFWriter, sizes: _Sizes, layers: int) -> None:
    writer.add_block_count(layers)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(sizes.hidden)
    writer.add_feed_forward_length(sizes.units)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.key_heads)
    writer.add_key_length(_HEAD_DIM)
    writer.add_value_length(_HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    if sizes.experts:
        writer.add_expert_count(sizes.experts)
        writer.add_expert_used_count(sizes.chosen)
        writer.add_expert_feed_forward_length(sizes.units)
    letters = [*map(chr, range(33, 127)), *map(chr, range(161, 173)), *map(chr, range(174, 256))]
    letters += [chr(256 + number) for number in range(256 - len(letters))]  # of all bytes
    words = [f"w{number}" for number in range(_VOCABULARY - 257)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*letters, *words, "<end>"])
    writer.add_token_types([*[TokenType.NORMAL] * (_VOCABULARY - 1), TokenType.CONTROL])
    writer.add_token_merges(["w 0"])
    writer.add_eos_token_id(_VOCABULARY - 1)


def _tensors(sizes: _Sizes, layers: int, encoding: str) -> Iterator[tuple[str, list[int], str]]:
    """Yields the name, the shape and the encoding of each."""
    hidden, queries = sizes.hidden, sizes.heads * _HEAD_DIM
    keys, experts = sizes.key_heads * _HEAD_DIM, sizes.experts
    yield "token_embd.weight", [_VOCABULARY, hidden], "Q4_K"
    yield "output.weight", [_VOCABULARY, hidden], "Q6_K"
    yield "output_norm.weight", [hidden], "F32"
    for layer in range(layers):
        place = f"blk.{layer}"
        for name, size in (("attn", hidden), ("ffn", hidden), ("attn_q", 0), ("attn_k", 0)):
            yield f"{place}.{name}_norm.weight", [size or _HEAD_DIM], "F32"
        yield f"{place}.attn_q.weight", [queries, hidden], encoding
        yield f"{place}.attn_k.weight", [keys, hidden], encoding
        yield f"{place}.attn_v.weight", [keys, hidden], encoding
        yield f"{place}.attn_output.weight", [hidden, queries], encoding
        if experts:
            yield f"{place}.ffn_gate_inp.weight", [experts, hidden], "F32"
        stacked = [experts] if experts else []
        kind = "_exps" if experts else ""
        yield f"{place}.ffn_gate{kind}.weight", [*stacked, sizes.units, hidden], encoding
        yield f"{place}.ffn_up{kind}.weight", [*stacked, sizes.units, hidden], encoding
        yield f"{place}.ffn_down{kind}.weight", [*stacked, hidden, sizes.units], encoding


def _parts(values: int, encoding: str) -> Iterator[memoryview]:
    """Yields the bytes of a tensor, some at a time; all tensors begin alike."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[encoding]]
    nbytes = values // block * size
    part = _random(encoding, min(nbytes, _PART // size * size))
    while nbytes > 0:
        yield part[:nbytes].data
        nbytes -= len(part)


def _random(encoding: str, nbytes: int) -> NDArray[np.uint8]:
    draws = np.random.default_rng(0)
    if encoding == "F32":
        values = draws.standard_normal(nbytes // 4, np.float32) * np.float32(0.02) + 1
        return values.view(np.uint8)
    size = GGML_QUANT_SIZES[GGMLQuantizationType[encoding]][1]
    blocks = draws.integers(0, 256, (nbytes // size, size), np.uint8)
    place, scale = _SCALES[encoding]
    places = [place, place + 2] if encoding == "Q4_K" else [place]
    for each in places:
        blocks[:, each : each + 2] = np.array([scale], np.float16).view(np.uint8)
    return blocks.reshape(-1)


if __name__ == "__main__":
    main()
