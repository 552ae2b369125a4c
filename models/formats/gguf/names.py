"""What GGUF calls the tensors and fields of an architecture that transformers calls otherwise."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgespec.models.heads import nextn

if TYPE_CHECKING:
    from collections.abc import Mapping

NUMBER = "{}"
"""In the name of a tensor that holds those of all experts or heads, in place of a number."""

EXPERT = f".experts.{NUMBER}."

BOTH = "gate_up_proj"
"""In the name of a tensor that holds gate above up of each of them."""

FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors by one of which llama.cpp divides the angles of each dimension."""

_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "cls.output": "score",
    "dense_2": "2_Dense.linear",
    "dense_3": "3_Dense.linear",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": f"mlp{EXPERT}gate_proj",
    "ffn_up_exps": f"mlp{EXPERT}up_proj",
    "ffn_down_exps": f"mlp{EXPERT}down_proj",
    "ffn_gate_up_exps": f"mlp{EXPERT}{BOTH}",
}
_HEAD = {f"nextn.{name.replace('.', '_')}": own for name, own in nextn.HEAD.items()}
COPIES = tuple(f".nextn.{name.replace('.', '_')}.weight" for name in nextn.COPIES)
"""Endings of the names of tensors that a draft head holds of the model itself once more."""

MIXTURE = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
"""Sizes of most mixtures, see `Naming.integers`."""

WEIGHED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
"""Parts of a layer whose mixture is beside an expert of all rows, times a share of its own."""

WEIGHED_SIZES = {
    **MIXTURE,
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
"""Sizes of such a mixture."""

GRANITE = {
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
"""Factors of Granite and of models like it, see `Naming.numbers`."""

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Naming:
    """An architecture of GGUF in the terms of transformers.

    Attributes:
        model_type: Its name in transformers.
        layer: What a layer has beside `_LAYER`, or under another name: the name in transformers
            by that in GGUF. Where GGUF has `.weight` or `.bias` and transformers has not, both are
            whole names, else both are without.
        layers: What names of a layer's tensors begin with in transformers.
        model: The same for what is no part of a layer, beside `_MODEL`.
        interleaved: Whether the rows of query and key projections are stored so that dimensions
            that turn together are neighbours; transformers has them half a head apart.
        norm_offset: What was added to the weights of norms when they were stored.
        layer_norm: Whether norms subtract the mean, too.
        window: Whether the file may say that some layers have a window.
        windowed: The name in transformers of a model with windows, if that is another.
        widest: Number of layers of the model whose scores are scaled by the width of its queries
            in place of the size of its heads: no field of GGUF says so, llama.cpp goes by this.
        numbers: Names in GGUF of further numbers by their fields in config.json.
        integers: The same of integers.
        present: Tensors of a layer whose presence is a field of config.json, by that field.
        constants: Fields of config.json that GGUF files of this architecture leave out.
        log_multiplier: What RoPE's `mscale` of 1 is in a file; 0: it is none.
        both_ways: Whether rows see all of their text, so that the model makes embeddings.
        only: The values of a field that can be read, None among them where it may be absent.
    """

    model_type: str
    layer: Mapping[str, str] = field(default_factory=dict)
    layers: str = "model.layers"
    model: Mapping[str, str] = field(default_factory=dict)
    interleaved: bool = False
    norm_offset: float = 0.0
    layer_norm: bool = False
    window: bool = False
    windowed: str = ""
    widest: int | None = None
    numbers: Mapping[str, str] = field(default_factory=dict)
    integers: Mapping[str, str] = field(default_factory=dict)
    present: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, object] = field(default_factory=dict)
    log_multiplier: float = 0.0
    both_ways: bool = False
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    def translated(self, name: str, layers: int) -> str:
        """Returns the name in transformers of a tensor, or its own if it has none there.

        Args:
            name: Its name in the file.
            layers: Number of the model's layers; those behind them are of the draft head `mtp`.
        """
        block = _BLOCK.fullmatch(name)
        if block is None:
            prefix = ""
            rest = name
            places = {**_MODEL, **self.model}
        else:
            number = int(block[1])
            rest = block[2]
            prefix = f"{self.layers}.{number}."
            places = {**_LAYER, **self.layer}
            if number >= layers:
                prefix = f"mtp.layers.{number - layers}."
            if number == layers and rest.startswith("nextn."):
                prefix, places = "mtp.", _HEAD
        stem, _, kind = rest.rpartition(".")
        if rest in places:
            return prefix + places[rest]
        return f"{prefix}{places[stem]}.{kind}" if stem in places else name
