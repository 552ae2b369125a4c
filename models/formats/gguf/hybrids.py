"""Models in GGUF files whose layers are convolutions or the gated delta rule, and attention.

llama.cpp has the value heads of Qwen3.5's linear attention by their place in the group of a key
head, so that those of all groups follow one another; transformers has them group by group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.formats.gguf.config import ConfigReader
from edgespec.models.formats.gguf.names import (
    EXPERT,
    MIXTURE,
    WEIGHED_EXPERT,
    WEIGHED_SIZES,
    Naming,
)
from edgespec.models.formats.gguf.routed import RoutedLatentReader
from edgespec.models.formats.parts import TensorRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from edgespec.models.formats.tensors import TensorSource


class Lfm2Reader(ConfigReader):
    """LFM2: layers that have no key heads are convolutions."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        types = ["full_attention" if each else "conv" for each in self.key_heads()]
        epsilon = self.metadata.number(f"{self.kind}.attention.layer_norm_rms_epsilon")
        return {"layer_types": types, "norm_eps": epsilon}


class KimiReader(RoutedLatentReader):
    """Kimi Linear: layers that have no key heads are gated delta rule."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`; llama.cpp has shares that add up to 1 in its code."""
        kinds = ("linear_attention", "full_attention")
        return {
            **super().special(),
            "norm_topk_prob": True,
            "layer_types": [kinds[bool(each)] for each in self.key_heads()],
            "linear_head_dim": self.integer("kda.head_dim"),
            "linear_num_heads": self.integer("attention.head_count"),
            "linear_conv_kernel_dim": self.integer("ssm.conv_kernel"),
        }


class DeltaReader(ConfigReader):
    """Qwen3-Next: some layers, or every n-th, are attention, the others are gated delta rule."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        listed = self.get("attention.recurrent_layers")
        types: dict[str, object]
        types = {"full_attention_interval": self.integer("full_attention_interval", 4)}
        if isinstance(listed, list):  # with the layers that only draft
            kinds = ("full_attention", "linear_attention")
            types = {"layer_types": [kinds[bool(each)] for each in listed[: self.layers]]}
        return {
            **types,
            "linear_conv_kernel_dim": self.integer("ssm.conv_kernel"),
            "linear_key_head_dim": self.integer("ssm.state_size"),
            "linear_value_head_dim": self._value_size,
            "linear_num_key_heads": self._key_count,
            "linear_num_value_heads": self._value_count,
        }

    @property
    def _key_count(self) -> int:
        return self.integer("ssm.group_count")

    @property
    def _value_count(self) -> int:
        return self._multiple("ssm.time_step_rank", "ssm.group_count")

    @property
    def _value_size(self) -> int:
        return self._multiple("ssm.inner_size", "ssm.time_step_rank") // self._value_count

    def _multiple(self, name: str, of: str) -> int:
        """A field whose value must be a multiple of another's."""
        value = self.integer(name)
        divisor = self.integer(of)
        if value % divisor:
            rule = f"must be a multiple of {of}={divisor}"
            raise self.metadata.invalid(f"{self.kind}.{name}", rule)
        return value


class Qwen35Reader(DeltaReader):
    """Qwen3.5, whose value heads are in another order."""

    def rows(self, tensors: TensorSource) -> dict[str, TensorRows]:
        """See `ConfigReader`."""
        keys = 2 * self._key_count * self.integer("ssm.state_size")
        # Rows before those of the value heads, and the rows of a value head.
        mixed = (keys, self._value_size)
        gate = (0, self._value_size)
        single = (0, 1)
        kinds = {
            "in_proj_qkv.weight": mixed,
            "conv1d.weight": mixed,
            "in_proj_z.weight": gate,
            "in_proj_a.weight": single,
            "in_proj_b.weight": single,
            "A_log": single,
            "dt_bias": single,
        }
        parts = dict[str, TensorRows]()
        for name in tensors.names:
            before, size = kinds.get(name.rpartition(".linear_attn.")[2], (0, 0))
            total = before + size * self._value_count
            # Sizes that contradict the tensors are found when these are compared with the config.
            if size and tensors.shape(name)[0] == total:
                order = np.append(np.arange(before), before + self._order(size))
                parts[name] = TensorRows(name, order, total)
        return parts

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """See `ConfigReader`."""
        size = self._value_size
        width = self.integer("ssm.inner_size")
        return {
            f"model.layers.{layer}.linear_attn.out_proj.weight": self._order(size)
            for layer in range(self.layers)
            if self.shape(f"blk.{layer}.ssm_out.weight")[1:] == (width,)
        }

    def _order(self, size: int) -> NDArray[np.int64]:
        """The stored number of each dimension of all value heads, heads of `size` dimensions."""
        heads = np.arange(self._value_count).reshape(-1, self._key_count).T.ravel()
        return (heads[:, None] * size + np.arange(size)).ravel()


_DELTA = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_LFM2 = Naming(
    "lfm2",
    layer={
        "attn_norm": "operator_norm",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "shortconv.conv": "conv.conv",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.out_proj": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
    },
    model={"token_embd_norm": "model.embedding_norm"},
    integers={"conv_L_cache": "shortconv.l_cache"},
    present={"conv_bias": "shortconv.in_proj.bias"},
    constants={"block_auto_adjust_ff_dim": False},
)

HYBRIDS: Mapping[str, Naming] = {
    "qwen35": Naming("qwen3_5_text", layer=_DELTA, norm_offset=1.0),
    "qwen35moe": Naming(
        "qwen3_5_moe_text",
        layer={**_DELTA, **WEIGHED_EXPERT},
        norm_offset=1.0,
        integers=WEIGHED_SIZES,
    ),
    "qwen3next": Naming(
        "qwen3_next",
        layer={
            **_DELTA,
            **WEIGHED_EXPERT,
            "ssm_in": "linear_attn.in_proj_qkvz",
            "ssm_ba": "linear_attn.in_proj_ba",
        },
        norm_offset=1.0,
        integers=WEIGHED_SIZES,
    ),
    "lfm2": _LFM2,
    "lfm2moe": replace(
        _LFM2,
        model_type="lfm2_moe",
        layer={
            **_LFM2.layer,
            "ffn_gate_inp": "feed_forward.gate",
            "ffn_gate_exps": f"feed_forward{EXPERT}w1",
            "ffn_up_exps": f"feed_forward{EXPERT}w3",
            "ffn_down_exps": f"feed_forward{EXPERT}w2",
            "exp_probs_b.bias": "feed_forward.expert_bias",
        },
        integers={
            **_LFM2.integers,
            **MIXTURE,
            "moe_intermediate_size": "expert_feed_forward_length",
            "num_dense_layers": "leading_dense_block_count",
        },
        present={**_LFM2.present, "use_expert_bias": "exp_probs_b.bias"},
        only={"expert_gating_func": (2,), "expert_weights_scale": (None,)},  # 2: sigmoids
    ),
}
"""Their architectures, see `ARCHITECTURES`."""
