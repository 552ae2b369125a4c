"""ERNIE 4.5 with mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.families.ernie4_5 import Ernie4_5
from edgespec.models.families.mixture import beside_shared, mixture, unstacked_by_layer
from edgespec.models.formats.parts import Parts, TensorRows

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.sublayers import Mlp, MlpAndMoe


class Ernie4_5Moe(Ernie4_5):  # noqa: N801 - the model's name
    """ERNIE 4.5 with experts in some layers, chosen by softmax and a bias of each."""

    models = "ERNIE 4.5 with mixtures of experts, as ERNIE-4.5-21B-A3B"
    defaults = Ernie4_5.but(
        num_key_value_heads=4,
        head_dim=None,
        moe_intermediate_size=1536,
        moe_k=6,
        moe_num_experts=64,
        moe_num_shared_experts=2,
        moe_layer_start_index=1,
        moe_layer_end_index=-1,
        moe_layer_interval=1,
        moe_norm_min=1e-12,
    )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with the usual names of experts' fields."""
        return super().usual(
            fields.changed(
                num_experts=fields.get("moe_num_experts"),
                num_experts_per_tok=fields.get("moe_k"),
                norm_topk_prob=True,
            )
        )

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        self.config.fields.only({"use_bias": (False, None)}, "only models without biases are read")
        return super().decoder()

    def feed_forward(self, index: int) -> Mlp | MlpAndMoe:
        """Returns the MLP of a layer, or its mixture of experts."""
        fields = self.config.fields
        dense = self.mlp(index)
        if not self._has_experts(index):
            return dense
        width = fields.integer("moe_intermediate_size")
        moe = replace(
            mixture(self.config, dense, width),
            least_sum=fields.number("moe_norm_min"),
            choice_bias=f"{self.layers}.{index}.mlp.moe_statics.e_score_correction_bias",
        )
        shared = width * fields.integer("moe_num_shared_experts")
        return beside_shared(moe, dense, f"{self.layers}.{index}.mlp.shared_experts", shared)

    def _has_experts(self, index: int) -> bool:
        """Returns whether a layer has experts: every n-th from one layer to another."""
        fields = self.config.fields
        first, last = (fields.get(f"moe_layer_{end}_index") for end in ("start", "end"))
        if not isinstance(first, int) or not isinstance(last, int):
            raise fields.invalid("moe_layer_start_index", "must be a layer, as moe_layer_end_index")
        within = first <= index and (last == -1 or index <= last)
        return within and (index + 1) % fields.integer("moe_layer_interval") == 0

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; files have experts' biases as a matrix of one row."""
        parts = dict[str, TensorRows]()
        for index in filter(self._has_experts, range(self.config.num_layers)):
            bias = f"{self.layers}.{index}.mlp.moe_statics.e_score_correction_bias"
            if bias in tensors.names and len(tensors.shape(bias)) > 1:
                parts[bias] = TensorRows(bias, np.zeros(1, np.int64), 1, vector=True)
        return super().arranged(unstacked_by_layer(Parts(tensors, parts), self))
