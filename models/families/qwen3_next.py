"""Qwen3-Next: Qwen3.5's layers, with experts as Qwen3-MoE has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.families.mixture import beside_weighed, unstacked_by_layer
from edgespec.models.families.qwen3_5 import Qwen3_5
from edgespec.models.families.qwen3_moe import Qwen3Moe
from edgespec.models.formats.parts import Parts, TensorRows
from edgespec.models.layers.recurrent import GatedDelta

if TYPE_CHECKING:
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.sublayers import MlpAndMoe


class Qwen3Next(Qwen3_5, Qwen3Moe):
    """Qwen3.5 whose linear attention has fused projections, and experts in all or some layers."""

    models = "Qwen3-Next-80B-A3B, Qwen3-Coder-Next"
    defaults = Qwen3_5.but(
        num_key_value_heads=2,
        num_experts=512,
        num_experts_per_tok=10,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        norm_topk_prob=True,
        decoder_sparse_step=1,
    )

    def experts(self, index: int) -> MlpAndMoe:
        """Returns the mixture of experts of a layer, and the expert that all rows read."""
        width = self.config.fields.integer("shared_expert_intermediate_size")
        return beside_weighed(self, index, width)

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; files have fused projections, those of a key head side by side."""
        parts = dict[str, TensorRows]()
        for index in sorted(self.config.recurrent):
            layer = self.mixer(index)
            assert isinstance(layer, GatedDelta)
            group = layer.value_heads // layer.key_heads
            values = group * layer.value_size
            name = f"{self.layers}.{index}.linear_attn"
            heads = layer.key_heads
            both = f"{name}.in_proj_qkvz.weight"
            if both in tensors.names:  # some GGUF files have them apart
                *mixed, gate = _columns(heads, layer.key_size, layer.key_size, values, values)
                total = layer.channels + layer.gate.out_features
                parts[layer.mixed[0].weight] = TensorRows(both, np.concatenate(mixed), total)
                parts[layer.gate.weight] = TensorRows(both, gate, total)
            rate, decay = _columns(heads, group, group)
            both = f"{name}.in_proj_ba.weight"
            parts[layer.rate.weight] = TensorRows(both, rate, 2 * layer.value_heads)
            parts[layer.decay.weight] = TensorRows(both, decay, 2 * layer.value_heads)
        return super().arranged(unstacked_by_layer(Parts(tensors, parts), self))


def _columns(heads: int, *sizes: int) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Returns the rows of each part, where those of a head lie side by side in these sizes."""
    rows = np.arange(heads * sum(sizes)).reshape(heads, -1)
    return [each.ravel() for each in np.split(rows, np.cumsum(sizes)[:-1], axis=1)]
