"""An EAGLE-3 head in a GGUF file, as llama.cpp's converter writes it, for peers that read those."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from edgespec.errors import InputError
from edgespec.export.heads.draft_head import target_sizes
from edgespec.models import load_checkpoint
from edgespec.models.heads.eagle3 import EAGLE3
from edgespec.models.heads.head import Head
from edgespec.models.heads.opening import load_head
from edgespec.training.shape import rope_theta
from peers.gguf_copy import copy_facts, finish

if TYPE_CHECKING:
    from pathlib import Path

    from edgespec.models.heads.checkpoint import HeadCheckpoint, TargetSizes

_TAPS = 3  # of a head that peers read
_GATE = "mlp.gate_proj"
_LAYER = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    _GATE: "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "fc.weight": "fc.weight",
    **{f"layers.0.{name}.weight": f"blk.0.{stored}.weight" for name, stored in _LAYER.items()},
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_head_file(head: Path, model: Path, output: Path) -> None:
    """Writes the file of a head, with matrices in Q8_0, as edgespec has them in int8.

    Args:
        head: folder of the head, or its GGUF file.
        model: GGUF file of its target, whose tokenizer llama.cpp looks for in the head's.
        output: the file, under this name when it is complete.

    Raises:
        CheckpointError: a file is damaged, or the head belongs to another target.
        InputError: it is of a kind that only edgespec reads.
        UnsupportedModelError: a file needs something that is not implemented.
    """
    sizes = target_sizes(load_checkpoint(model))
    loaded = load_head(head, sizes)
    known = _known(loaded)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, EAGLE3)
    _add_facts(writer, known, sizes)
    copy_facts(gguf.GGUFReader(model), writer, "tokenizer.")
    _add_tensors(writer, known, loaded, sizes)
    finish(writer)
    partial.rename(output)


def _known(loaded: HeadCheckpoint) -> Head:
    """Returns the description of a head of the kind that peers read."""
    head = loaded.head
    if isinstance(head, Head) and head.architecture == EAGLE3:
        others = sorted(head.tensors().keys() - _NAMES.keys())
        if head.norm_output:
            others.append("norm_output")
        if len(head.taps) != _TAPS:
            others.append(f"taps {head.taps}")
        if not others:
            return head
    else:
        others = [f"architecture {head.architecture}"]
    raise InputError(
        f"{loaded.path}: other programs read {EAGLE3} heads of one layer and {_TAPS} taps with no "
        f"further norms, gates or biases, and this one has {', '.join(others)}: train one by "
        "`edgespec train-draft --kind eagle3`"
    )


def _add_facts(writer: Any, head: Head, sizes: TargetSizes) -> None:
    attention = head.attention
    width, _ = head.tensors()[f"layers.0.{_GATE}.weight"]
    writer.add_block_count(1)
    writer.add_context_length(head.context_length)
    writer.add_embedding_length(head.hidden_size)
    writer.add_feed_forward_length(width)
    writer.add_head_count(attention.heads)
    writer.add_head_count_kv(attention.kv_heads)
    writer.add_key_length(attention.head_dim)
    writer.add_value_length(attention.head_dim)
    writer.add_layer_norm_rms_eps(head.norm.eps)
    writer.add_rope_dimension_count(attention.head_dim)
    writer.add_rope_freq_base(_theta(head, sizes))
    writer.add_array(f"{EAGLE3}.target_layers", list(head.taps))
    writer.add_uint32(f"{EAGLE3}.target_hidden_size", sizes.hidden_size)
    writer.add_bool(f"{EAGLE3}.norm_before_residual", head.layer.norm_before_residual)


def _theta(head: Head, sizes: TargetSizes) -> float:
    """Returns the base of a head's rotation, which is its own or the target's."""
    turns = np.asarray(sizes.inv_freq if head.rope is None else head.rope.inv_freq)
    theta = rope_theta(turns.tolist())
    if not np.allclose(turns, theta ** -(np.arange(len(turns)) / len(turns)), rtol=1e-3, atol=0):
        raise InputError("the head's rotary embedding is scaled: use one whose is not")
    return theta


def _add_tensors(writer: Any, head: Head, loaded: HeadCheckpoint, sizes: TargetSizes) -> None:
    shapes = head.tensors()
    for name, stored in _NAMES.items():
        if name not in shapes:
            continue
        values = loaded.tensors.read(name)
        if "q_proj" in name or "k_proj" in name:  # dimensions that turn together are neighbours
            halves = values.reshape(-1, 2, head.attention.head_dim // 2, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        kind = Kind.Q8_0 if values.ndim > 1 else Kind.F32
        packed = gguf.quants.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(stored, packed, raw_dtype=kind)
    if len(loaded.ids) < sizes.vocab_size:
        writer.add_tensor("d2t", loaded.ids, raw_dtype=Kind.I64)
