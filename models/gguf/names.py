"""What GGUF calls the tensors and fields of an architecture that transformers calls otherwise."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
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
}
_NORMS_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_NORMS_AROUND = {**_NORMS_BEHIND, "ffn_norm": "pre_feedforward_layernorm"}
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Naming:
    """An architecture of GGUF in the terms of transformers.

    Attributes:
        model_type: Its name in transformers.
        layer: What a layer has beside `_LAYER`, or under another name: the name in transformers
            by that in GGUF, both without `.weight` or `.bias`.
        interleaved: Whether the rows of query and key projections are stored so that dimensions
            that turn together are neighbours; transformers has them half a head apart.
        norm_offset: What was added to the weights of norms when they were stored.
        window: Whether some layers have a window.
        widest: Number of layers of the model whose scores are scaled by the width of its queries
            in place of the size of its heads: no field of GGUF says so, llama.cpp goes by this.
        numbers: Names in GGUF of further numbers by their fields in config.json.
        constants: Fields of config.json that GGUF files of this architecture leave out.
    """

    model_type: str
    layer: Mapping[str, str] = field(default_factory=dict)
    interleaved: bool = False
    norm_offset: float = 0.0
    window: bool = False
    widest: int | None = None
    numbers: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, object] = field(default_factory=dict)

    def translated(self, name: str) -> str:
        """Returns the name in transformers of a tensor, or its own if it has none there."""
        stem, _, kind = name.rpartition(".")
        block = _BLOCK.fullmatch(stem)
        if block is None:
            place = _MODEL.get(stem)
        else:
            place = self.layer.get(block[2]) or _LAYER.get(block[2])
            place = place and f"model.layers.{block[1]}.{place}"
        return name if place is None else f"{place}.{kind}"


ARCHITECTURES: Mapping[str, Naming] = {
    "llama": Naming("llama", interleaved=True),
    "smollm3": Naming("smollm3", interleaved=True),
    "granite": Naming(
        "granite",
        interleaved=True,
        numbers={
            "embedding_multiplier": "embedding_scale",
            "attention_multiplier": "attention.scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
    ),
    "qwen2": Naming("qwen2"),
    "qwen3": Naming("qwen3"),
    "olmo2": Naming("olmo2", _NORMS_BEHIND),
    "gemma2": Naming(
        "gemma2",
        _NORMS_AROUND,
        norm_offset=1.0,
        window=True,
        widest=46,
        numbers={
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
    ),
    "gemma3": Naming(
        "gemma3_text",
        _NORMS_AROUND,
        norm_offset=1.0,
        window=True,
        widest=62,
        constants={"sliding_window_pattern": 6, "rope_local_base_freq": 10_000.0},
    ),
}
"""What can be read, by `general.architecture`; Mistral's models are stored as `llama`."""
