"""Draft heads in GGUF files, as llama.cpp's converter writes them, for peers that read those."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from edgespec.errors import InputError
from edgespec.export.heads.draft_head import target_sizes
from edgespec.models import load_checkpoint
from edgespec.models.formats.gguf.opening import whole_header
from edgespec.models.heads.block_head import BlockHead
from edgespec.models.heads.dflash import DFLASH, DSPARK
from edgespec.models.heads.eagle3 import EAGLE3
from edgespec.models.heads.head import Head
from edgespec.models.heads.opening import load_head
from edgespec.training.shape import rope_theta
from peers.gguf_copy import copy_facts, finish

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgespec.models.heads.checkpoint import HeadCheckpoint, TargetSizes

_TAPS = 3  # of an EAGLE-3 head that peers read
_TOGETHER = 32  # numbers that share a scale in Q8_0
_MASK = "tokenizer.ggml.mask_token_id"
_GATE = "mlp.gate_proj"
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    _GATE: "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_MODEL = {
    "fc.weight": "fc.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


@dataclass(frozen=True)
class _Form:
    """What a form of heads is called in a file.

    Attributes:
        architecture: of the file.
        layer: the file's names of parts of a layer.
        model: its names of other tensors.
        interleaved: whether dimensions of queries and keys that turn together are neighbours there.
    """

    architecture: str
    layer: Mapping[str, str]
    model: Mapping[str, str]
    interleaved: bool = False

    def names(self, layers: int) -> dict[str, str]:
        """Returns the file's names by those of a head with so many layers."""
        return {
            **self.model,
            **{
                f"layers.{number}.{name}.weight": f"blk.{number}.{stored}.weight"
                for number in range(layers)
                for name, stored in self.layer.items()
            },
        }


_BLOCK = _Form(
    DFLASH,
    {**_LAYER, "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"},
    {**_MODEL, "hidden_norm.weight": "enc.output_norm.weight"},
)
_FORMS = {
    EAGLE3: _Form(
        EAGLE3,
        {**_LAYER, "hidden_norm": "attn_norm_2"},
        {**_MODEL, "embed_tokens.weight": "token_embd.weight"},
        interleaved=True,
    ),
    DFLASH: _BLOCK,
    DSPARK: replace(
        _BLOCK,
        model={
            **_BLOCK.model,
            "markov_head.markov_w1.weight": "markov_w1.weight",
            "markov_head.markov_w2.weight": "markov_w2.weight",
            "confidence_head.proj.weight": "conf_proj.weight",
            "confidence_head.proj.bias": "conf_proj.bias",
        },
    ),
}


def write_head_file(head: Path, model: Path, output: Path) -> None:
    """Writes the file of a head, with matrices in Q8_0 where rows allow, as edgespec has int8.

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
    form, known = _known(loaded)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, form.architecture)
    copy_facts(gguf.GGUFReader(model), writer, "tokenizer.", but=_MASK)
    _add_facts(writer, known, sizes)
    _add_tensors(writer, form, known, loaded)
    finish(writer)
    partial.rename(output)


def form_of(file: Path) -> str:
    """Returns the form of the head in a file of `write_head_file`: eagle3, dflash or dspark."""
    header = whole_header(file)
    markov = any(name.startswith("markov") for name in header.entries)
    return DSPARK if markov else str(header.metadata["general.architecture"])


def _known(loaded: HeadCheckpoint) -> tuple[_Form, Head | BlockHead]:
    """Returns the form of a head and the head, if it is one that peers read."""
    head = loaded.head
    form = _FORMS.get(head.architecture)
    if form is None or not isinstance(head, Head | BlockHead):
        others = [f"architecture {head.architecture}"]
    else:
        others = sorted(head.tensors().keys() - form.names(_depth(head)).keys())
        others += _unlike(head)
        if not others:
            return form, head
    raise InputError(
        f"{loaded.path}: other programs read {EAGLE3} heads of one layer and {_TAPS} taps, and "
        f"{DFLASH} and {DSPARK} heads, with no further norms, gates, biases or windows, and this "
        f"one has {', '.join(others)}: train one by `edgespec train-draft --kind {EAGLE3}`"
    )


def _depth(head: Head | BlockHead) -> int:
    """Returns how many layers peers read of a head."""
    return head.depth if isinstance(head, BlockHead) else 1


def _unlike(head: Head | BlockHead) -> list[str]:
    """Returns what peers do not read of a head, but for its tensors."""
    if isinstance(head, BlockHead):
        causal = any(layer.causal or layer.attention.window for layer in head.layers)
        return ["windows, or rows that see no later ones"] if causal else []
    others = ["norm_output"] if head.norm_output else []
    return others if len(head.taps) == _TAPS else [*others, f"taps {head.taps}"]


def _add_facts(writer: Any, head: Head | BlockHead, sizes: TargetSizes) -> None:
    attention = head.attention
    width, _ = head.tensors()[f"layers.0.{_GATE}.weight"]
    writer.add_block_count(_depth(head))
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
    kind = writer.arch
    writer.add_array(f"{kind}.target_layers", list(head.taps))
    if isinstance(head, BlockHead):
        writer.add_uint32(f"{kind}.block_size", head.size)
        writer.add_bool(f"{kind}.sample_from_anchor", head.from_anchor)
        trusts = head.markov is not None and head.markov.confidence is not None
        writer.add_bool(f"{kind}.has_confidence_head", trusts)
        writer.add_mask_token_id(head.mask_token)
    else:
        writer.add_uint32(f"{kind}.target_hidden_size", sizes.hidden_size)
        writer.add_bool(f"{kind}.norm_before_residual", head.layer.norm_before_residual)


def _theta(head: Head | BlockHead, sizes: TargetSizes) -> float:
    """Returns the base of a head's rotation, which is its own or the target's."""
    turns = np.asarray(sizes.inv_freq if head.rope is None else head.rope.inv_freq)
    theta = rope_theta(turns.tolist())
    if not np.allclose(turns, theta ** -(np.arange(len(turns)) / len(turns)), rtol=1e-3, atol=0):
        raise InputError("the head's rotary embedding is scaled: use one whose is not")
    return theta


def _add_tensors(writer: Any, form: _Form, head: Head | BlockHead, loaded: HeadCheckpoint) -> None:
    shapes = head.tensors()
    for name, stored in form.names(_depth(head)).items():
        if name not in shapes:
            continue
        values = loaded.tensors.read(name)
        if form.interleaved and ("q_proj" in name or "k_proj" in name):
            halves = values.reshape(-1, 2, head.attention.head_dim // 2, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        whole = values.ndim > 1 and values.shape[-1] % _TOGETHER == 0
        kind = Kind.Q8_0 if whole else Kind.F32
        packed = gguf.quants.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(stored, packed, raw_dtype=kind)
    if head.lm_head is not None and head.lm_head.out_features < head.vocab_size:
        writer.add_tensor("d2t", loaded.ids, raw_dtype=Kind.I64)
