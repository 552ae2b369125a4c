"""Granite 3 with mixtures of experts (1B-A400M, 3B-A800M)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from edgespec.models.expert_tensors import ExpertTensors, Part, Stack
from edgespec.models.families.granite import Granite
from edgespec.models.families.mixture import mixture
from edgespec.models.layers import Linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.expert_tensors import ByteSource
    from edgespec.models.layers import Mlp, MlpAndMoe, Moe
    from edgespec.models.tensors import TensorSource


class GraniteMoe(Granite):
    """Granite 3 with a mixture of experts in every layer.

    Files hold all experts of a layer in one tensor, [experts, out, in], gate above up.
    """

    defaults: ClassVar[Mapping[str, object]] = {
        **Granite.defaults,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }

    def feed_forward(self, index: int) -> Mlp | Moe | MlpAndMoe:
        """Returns the mixture of experts of a layer."""
        return self.mixture(index)

    def mixture(self, index: int) -> Moe:
        """Returns the mixture of experts of a layer."""
        width = self.config.fields.integer("intermediate_size")
        layer = mixture(self, self.mlp(index), index, width)
        router = f"model.layers.{index}.block_sparse_moe.router.layer.weight"
        inputs, count = layer.router.in_features, layer.router.out_features
        return replace(layer, router=Linear(router, inputs, count), normalized=True)

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights with each expert's matrices as tensors of their own."""
        if self.mixture(0).experts[0].gate.weight in tensors.names:  # as in GGUF files
            return tensors
        parts = dict[str, Part]()
        for index in range(self.config.num_layers):
            name = f"model.layers.{index}.block_sparse_moe"
            experts = self.mixture(index).experts
            hidden, width = self.config.hidden_size, experts[0].gate.out_features
            shapes = (len(experts), 2 * width, hidden), (len(experts), hidden, width)
            first = Stack(f"{name}.input_linear.weight", "rows", shapes[0])
            last = Stack(f"{name}.output_linear.weight", "rows", shapes[1])
            for number, expert in enumerate(experts):
                parts[expert.gate.weight] = Part(first, number, 0, 1, width)
                parts[expert.up.weight] = Part(first, number, width, 1, width)
                parts[expert.down.weight] = Part(last, number, 0, 1, hidden)
        return ExpertTensors(cast("ByteSource", tensors), parts)
