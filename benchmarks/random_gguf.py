r"""Writes a GGUF file of random bits in the sizes of a published model, to measure what it takes.

    python benchmarks/random_gguf.py 27b IQ1_S -o large.gguf --layers 16
    edgespec plan large.gguf
    edgespec export large.gguf -o large && python benchmarks/memory.py large --contexts 512
    python benchmarks/pass_cost.py large --gguf large.gguf --peers ik_llama.cpp

Its texts are noise, and each byte of a prompt is a token. Models without a family's name are
Qwen3's, with 4,096 words, the embedding in Q4_K and the output in Q6_K. Gemma 3 and Qwen3.5 have as
many words as published, and one matrix in Q6_K is embedding and output. Other matrices are in the
encoding, norms and routers in F32. Where rows are no multiple of an encoding's block, another one
is taken, the same that llama.cpp takes. No quantizer is needed, as any bits are weights.
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
    from collections.abc import Iterator, Mapping

    from numpy.random import Generator
    from numpy.typing import NDArray

_PART = 1 << 26  # bytes that are written at once
# Where a block has its scale in half precision, and one that makes weights deviate by about 0.02.
_SCALES = {
    "Q1_0": (0, 0.02),
    "TQ1_0": (52, 0.02), "TQ2_0": (64, 0.02), "IQ1_S": (0, 3e-3), "IQ2_XXS": (0, 4e-4),
    "IQ2_XS": (0, 4e-4), "IQ2_S": (0, 4e-4), "IQ3_XXS": (0, 8e-5), "IQ3_S": (0, 2e-4),
    "Q4_0": (0, 4e-3), "Q4_K": (0, 1e-4), "Q5_0": (0, 2e-3), "Q6_K": (208, 4e-5),
    "Q8_0": (0, 3e-4), "IQ4_NL": (0, 3e-4), "IQ4_XS": (0, 2e-5),
}  # fmt: skip
# What llama.cpp takes in the place of an encoding with blocks of 256, beside IQ4_NL.
_SMALLER_BLOCKS = {"TQ1_0": "Q4_0", "TQ2_0": "Q4_0", "Q4_K": "Q5_0", "Q6_K": "Q8_0"}
_Q4_K_MINIMUM = (2, 7.5e-4)  # the scale of what is subtracted: as much as is added, on average
_EXACT = ("ffn_gate_inp.weight", "ssm_conv1d.weight")  # matrices in F32
# Of tensors in F32, else 1: states decay, and MLPs tell rows apart that attention makes alike.
_MEANS = {"ssm_a": -1.0, "post_ffw_norm.weight": 3.0}

# The tensors of a layer, and the names of their dimensions (see `_sizes`).
Tensors = dict[str, tuple[str, ...]]
_NORMS: Tensors = {"attn_norm.weight": ("hidden",), "ffn_norm.weight": ("hidden",)}
_ATTENTION: Tensors = {
    "attn_q_norm.weight": ("head",),
    "attn_k_norm.weight": ("head",),
    "attn_q.weight": ("queries", "hidden"),
    "attn_k.weight": ("keys", "hidden"),
    "attn_v.weight": ("keys", "hidden"),
    "attn_output.weight": ("hidden", "queries"),
}
_MLP: Tensors = {
    "ffn_gate.weight": ("units", "hidden"),
    "ffn_up.weight": ("units", "hidden"),
    "ffn_down.weight": ("hidden", "units"),
}
_EXPERTS: Tensors = {
    "ffn_gate_inp.weight": ("experts", "hidden"),
    "ffn_gate_exps.weight": ("experts", "units", "hidden"),
    "ffn_up_exps.weight": ("experts", "units", "hidden"),
    "ffn_down_exps.weight": ("experts", "hidden", "units"),
}
_DELTA: Tensors = {
    "attn_qkv.weight": ("mixed", "hidden"),
    "attn_gate.weight": ("inner", "hidden"),
    "ssm_conv1d.weight": ("mixed", "kernel"),
    "ssm_alpha.weight": ("value heads", "hidden"),
    "ssm_beta.weight": ("value heads", "hidden"),
    "ssm_a": ("value heads",),
    "ssm_dt.bias": ("value heads",),
    "ssm_norm.weight": ("state",),
    "ssm_out.weight": ("hidden", "inner"),
}
_QWEN35_NORMS: Tensors = {
    "attn_norm.weight": ("hidden",),
    "post_attention_norm.weight": ("hidden",),
}
_QWEN35_ATTENTION = _ATTENTION | {"attn_q.weight": ("queries and gates", "hidden")}
_GEMMA3_NORMS = _NORMS | {
    "post_attention_norm.weight": ("hidden",),
    "post_ffw_norm.weight": ("hidden",),
}


@dataclass(frozen=True)
class _Model:
    """A model.

    Attributes:
        architecture: its name in GGUF.
        layers: tensors of the first layers; the others are like these, in turn.
        facts: the architecture's fields in GGUF.
        words: of its vocabulary.
        tied: whether the embedding is the output, too.
    """

    architecture: str
    layers: tuple[Tensors, ...]
    facts: Mapping[str, int | float | list[int]]
    words: int = 4096
    tied: bool = False


def _facts(
    hidden: int, layers: int, heads: int, key_heads: int, units: int, head_dim: int = 128
) -> dict[str, int | float | list[int]]:
    """Returns the fields that all architectures have, with the numbers of Qwen3."""
    return {
        "context_length": 32768,
        "block_count": layers,
        "embedding_length": hidden,
        "feed_forward_length": units,
        "attention.head_count": heads,
        "attention.head_count_kv": key_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
    }


_QWEN3 = (_NORMS | _ATTENTION | _MLP,)
_MODELS = {
    "0.6b": _Model("qwen3", _QWEN3, _facts(1024, 28, 16, 8, 3072)),
    "27b": _Model("qwen3", _QWEN3, _facts(5120, 64, 24, 8, 17408)),
    "30b-a3b": _Model(
        "qwen3moe",
        (_NORMS | _ATTENTION | _EXPERTS,),
        {
            **_facts(2048, 48, 32, 4, 768),
            "expert_count": 128,
            "expert_used_count": 8,
            "expert_feed_forward_length": 768,
        },
    ),
    "gemma3-1b": _Model(
        "gemma3",
        (_GEMMA3_NORMS | _ATTENTION | _MLP,),
        {**_facts(1152, 26, 4, 1, 6912, 256), "attention.sliding_window": 512},
        262144,
        tied=True,
    ),
    "qwen3.5-0.8b": _Model(
        "qwen35",
        (*[_QWEN35_NORMS | _DELTA | _MLP] * 3, _QWEN35_NORMS | _QWEN35_ATTENTION | _MLP),
        {
            **_facts(1024, 24, 8, 2, 3584, 256),
            "full_attention_interval": 4,
            "rope.freq_base": 1e7,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "ssm.conv_kernel": 4,
            "ssm.state_size": 128,
            "ssm.group_count": 16,
            "ssm.time_step_rank": 16,
            "ssm.inner_size": 2048,
        },
        248320,
        tied=True,
    ),
}


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=_MODELS)
    parser.add_argument("encoding", choices=_SCALES)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--layers", type=count, help="fewer than the model has")
    given = parser.parse_args()
    model = _MODELS[given.model]
    facts = dict(model.facts)
    if given.layers:
        facts["block_count"] = given.layers
    writer = GGUFWriter(given.output, model.architecture)
    for name, value in facts.items():
        _add(writer, f"{model.architecture}.{name}", value)
    _add_tokenizer(writer, model.words)
    tensors = list(_tensors(model, _sizes(facts, model.words), given.encoding))
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
    for number, (name, shape, encoding) in enumerate(tensors):
        begin = file.tell()
        mean = _MEANS.get(name.split(".", 2)[-1], 1.0)
        for part in _parts(int(np.prod(shape)), encoding, mean, np.random.default_rng(number)):
            file.write(part)
        writer.write_padding(file, file.tell() - begin)
    writer.close()


def _add(writer: GGUFWriter, name: str, value: float | list[int]) -> None:
    if isinstance(value, list):
        writer.add_array(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    else:
        writer.add_float32(name, value)


def _add_tokenizer(writer: GGUFWriter, words: int) -> None:
    """Adds one that reads each byte as a word, and a chat template of the messages alone."""
    letters = [*map(chr, range(33, 127)), *map(chr, range(161, 173)), *map(chr, range(174, 256))]
    letters += [chr(256 + number) for number in range(256 - len(letters))]  # of all bytes
    others = [f"w{number}" for number in range(words - 257)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*letters, *others, "<end>"])
    writer.add_token_types([*[TokenType.NORMAL] * (words - 1), TokenType.CONTROL])
    writer.add_token_merges(["w 0"])
    writer.add_eos_token_id(words - 1)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}\n{% endfor %}")


def _sizes(facts: Mapping[str, Any], words: int) -> dict[str, int]:
    """Returns the sizes of dimensions by their names in the tables."""
    head = facts["attention.key_length"]
    state = facts.get("ssm.state_size", 0)
    inner = facts.get("ssm.inner_size", 0)
    return {
        "words": words,
        "layers": facts["block_count"],
        "hidden": facts["embedding_length"],
        "units": facts["feed_forward_length"],
        "experts": facts.get("expert_count", 0),
        "head": head,
        "queries": facts["attention.head_count"] * head,
        "queries and gates": 2 * facts["attention.head_count"] * head,
        "keys": facts["attention.head_count_kv"] * head,
        "kernel": facts.get("ssm.conv_kernel", 0),
        "value heads": facts.get("ssm.time_step_rank", 0),
        "state": state,
        "inner": inner,
        "mixed": 2 * facts.get("ssm.group_count", 0) * state + inner,
    }


def _tensors(
    model: _Model, sizes: Mapping[str, int], encoding: str
) -> Iterator[tuple[str, list[int], str]]:
    """Yields the name, the shape and the encoding of each."""
    matrix = [sizes["words"], sizes["hidden"]]
    yield "token_embd.weight", matrix, _fitting("Q6_K" if model.tied else "Q4_K", matrix)
    if not model.tied:
        yield "output.weight", matrix, _fitting("Q6_K", matrix)
    yield "output_norm.weight", matrix[1:], "F32"
    for layer in range(sizes["layers"]):
        for name, dimensions in model.layers[layer % len(model.layers)].items():
            shape = [sizes[each] for each in dimensions]
            exact = len(shape) == 1 or name in _EXACT
            yield f"blk.{layer}.{name}", shape, "F32" if exact else _fitting(encoding, shape)


def _fitting(encoding: str, shape: list[int]) -> str:
    """Returns the encoding, or another if its blocks are no part of rows."""
    block, _ = GGML_QUANT_SIZES[GGMLQuantizationType[encoding]]
    return _SMALLER_BLOCKS.get(encoding, "IQ4_NL") if shape[-1] % block else encoding


def _parts(values: int, encoding: str, mean: float, draws: Generator) -> Iterator[memoryview]:
    """Yields the bytes of a tensor, some at a time."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[encoding]]
    blocks, most = values // block, _PART // size
    for first in range(0, blocks, most):
        yield _random(encoding, min(most, blocks - first) * size, mean, draws).data


def _random(encoding: str, nbytes: int, mean: float, draws: Generator) -> NDArray[np.uint8]:
    if encoding == "F32":
        values = draws.standard_normal(nbytes // 4, np.float32) * np.float32(0.02) + mean
        return values.astype(np.float32).view(np.uint8)
    size = GGML_QUANT_SIZES[GGMLQuantizationType[encoding]][1]
    blocks = draws.integers(0, 256, (nbytes // size, size), np.uint8)
    scales = [_SCALES[encoding], *([_Q4_K_MINIMUM] if encoding == "Q4_K" else [])]
    for place, scale in scales:
        blocks[:, place : place + 2] = np.array([scale], np.float16).view(np.uint8)
    return blocks.reshape(-1)


if __name__ == "__main__":
    main()
