"""A checkpoint as a GGUF file in Q4_0 or Q8_0, by the `gguf` package and our own reader.

Runs where `gguf` and `ml_dtypes` are installed; of edgespec only `edgespec.models` is imported.
All matrices are quantized, the embedding among them (`llama-quantize --pure`), vectors fp32.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

_CHECKOUT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(_CHECKOUT))  # last: the names of our folders must not hide a library's

from edgespec.bundle.sublayers import CAUSAL, DEFAULT_ROPE  # noqa: E402
from edgespec.models import Attention, Decoder, Mlp, Norm, load_checkpoint  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgespec.models import Checkpoint, Linear

    Values = np.ndarray[Any, np.dtype[np.float32]]

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""What llama.cpp calls an architecture, by its `model_type`."""

_INTERLEAVED = ("llama",)
"""Architectures whose heads llama.cpp turns in neighbouring pairs, not in halves."""


def gguf_names(decoder: Decoder) -> dict[str, str]:
    """The name in a GGUF file of every tensor of a decoder, by its own."""
    names = {decoder.embedding: "token_embd.weight", decoder.norm.weight: "output_norm.weight"}
    if not decoder.tied:
        names |= _linear(decoder.lm_head, "output")
    for index, layer in enumerate(decoder.layers):
        for sublayer in layer:
            if not isinstance(sublayer, Attention | Mlp):
                raise NotImplementedError("only attention and MLPs are written as GGUF")
            parts = _attention(sublayer) if isinstance(sublayer, Attention) else _mlp(sublayer)
            names |= {name: f"blk.{index}.{place}" for name, place in parts}
    return names


def _attention(attention: Attention) -> Iterator[tuple[str, str]]:
    yield from _norm(attention.norm, "attn_norm")
    places = ("attn_q", "attn_k", "attn_v", "attn_output")
    for linear, place in zip(attention.linears, places, strict=True):
        yield from _linear(linear, place).items()
    for norm, place in ((attention.q_norm, "attn_q_norm"), (attention.k_norm, "attn_k_norm")):
        yield from _norm(norm, place)


def _mlp(mlp: Mlp) -> Iterator[tuple[str, str]]:
    yield from _norm(mlp.norm, "ffn_norm")
    for linear, place in ((mlp.gate, "ffn_gate"), (mlp.up, "ffn_up"), (mlp.down, "ffn_down")):
        yield from _linear(linear, place).items()


def _norm(norm: Norm | None, place: str) -> Iterator[tuple[str, str]]:
    if norm is not None:
        yield norm.weight, f"{place}.weight"


def _linear(linear: Linear, place: str) -> dict[str, str]:
    names = {linear.weight: f"{place}.weight"}
    return names if linear.bias is None else {**names, linear.bias: f"{place}.bias"}


def interleaved(values: Values, heads: int) -> Values:
    """Rows of a query or key projection, so that dimensions that turn together are neighbours."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def heads_to_interleave(model_type: str, decoder: Decoder) -> dict[str, int]:
    """Heads of each tensor whose rows must be interleaved, by its name."""
    if ARCHITECTURES[model_type] not in _INTERLEAVED:
        return {}
    heads: dict[str, int] = {}
    for attention in decoder.attentions:
        heads |= dict.fromkeys(attention.q.tensors(), attention.heads)
        for keys in attention.linears[1:-2]:
            heads |= dict.fromkeys(keys.tensors(), attention.kv_heads)
    return heads


def write_gguf(source: Path, output: Path, precision: str) -> None:
    """Write a checkpoint as GGUF.

    Args:
        source: Its folder.
        output: The file.
        precision: Of its matrices: `Q4_0`, `Q8_0` or another that has a type and a file type.

    Raises:
        ValueError: Its RoPE is scaled, which is not written.
        CheckpointError: It is damaged or not supported.
    """
    import gguf

    checkpoint = load_checkpoint(source)
    writer = gguf.GGUFWriter(str(output), ARCHITECTURES[checkpoint.config.model_type])
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{precision}"])
    _write_numbers(writer, checkpoint)
    _write_vocabulary(writer, checkpoint)
    kind = gguf.GGMLQuantizationType[precision]
    heads = heads_to_interleave(checkpoint.config.model_type, checkpoint.decoder)
    for name, place in gguf_names(checkpoint.decoder).items():
        values = checkpoint.tensors.read(name)
        if name in heads:
            values = interleaved(values, heads[name])
        if values.ndim == 2:
            writer.add_tensor(place, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(place, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_rounded(source: Path, output: Path) -> None:
    """Write a checkpoint again, in fp32, with what Q4_0 makes of its matrices.

    Raises:
        CheckpointError: It is damaged or not supported.
    """
    import gguf
    from safetensors.numpy import save_file

    checkpoint = load_checkpoint(source)
    kind = gguf.GGMLQuantizationType.Q4_0
    tensors = {}
    for name in checkpoint.decoder.tensors():
        values = checkpoint.tensors.read(name)
        if values.ndim == 2:
            values = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        tensors[name] = values
    output.mkdir(parents=True)
    save_file(tensors, output / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", *checkpoint.tokenizer_files):
        shutil.copyfile(source / name, output / name)


def _write_numbers(writer: Any, checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    writer.add_name(checkpoint.path.name)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(_theta(checkpoint))


def _theta(checkpoint: Checkpoint) -> float:
    config = json.loads((checkpoint.path / "config.json").read_text(encoding="utf-8"))
    parameters = config.get("rope_parameters") or {}
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    head_dim = checkpoint.config.head_dim
    plain = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    if any(each.mask != CAUSAL for each in checkpoint.decoder.attentions):
        raise ValueError(f"{checkpoint.path}: layers have windows: use a checkpoint without")
    rope = checkpoint.decoder.ropes[DEFAULT_ROPE]
    if rope.attention_factor != 1 or not np.allclose(rope.inv_freq, plain, rtol=1e-5, atol=0):
        raise ValueError(f"{checkpoint.path}: RoPE is scaled: use a checkpoint where it is not")
    return theta


def _write_vocabulary(writer: Any, checkpoint: Checkpoint) -> None:
    """A byte-level vocabulary; texts come as ids, so nothing here decides what is read."""
    import gguf

    content = json.loads((checkpoint.path / "tokenizer.json").read_text(encoding="utf-8"))
    size = checkpoint.config.vocab_size
    tokens = [f"[PAD{index}]" for index in range(size)]
    kinds = [gguf.TokenType.UNUSED] * size
    for token, index in content["model"]["vocab"].items():
        tokens[index], kinds[index] = token, gguf.TokenType.NORMAL
    for added in content["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = gguf.TokenType.CONTROL
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    if checkpoint.config.eos_ids:
        writer.add_eos_token_id(checkpoint.config.eos_ids[0])
