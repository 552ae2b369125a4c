"""Granite 3 with mixtures of experts (1B-A400M, 3B-A800M)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.granite import Granite
from edgespec.models.families.mixture import mixture, unstacked
from edgespec.models.layers.elements import Linear

if TYPE_CHECKING:
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.sublayers import Mlp, MlpAndMoe, Moe


class GraniteMoe(Granite):
    """Granite 3 with a mixture of experts in every layer.

    Files hold all experts of a layer in one tensor, [experts, out, in], gate above up.
    """

    defaults = Granite.but(
        num_local_experts=8,
        num_experts_per_tok=2,
    )

    def feed_forward(self, index: int) -> Mlp | Moe | MlpAndMoe:
        """Returns the mixture of experts of a layer."""
        return self.mixture(index)

    def mixture(self, index: int) -> Moe:
        """Returns the mixture of experts of a layer."""
        width = self.config.fields.integer("intermediate_size")
        layer = mixture(self.config, self.mlp(index), width)
        router = f"model.layers.{index}.block_sparse_moe.router.layer.weight"
        inputs = layer.router.in_features
        count = layer.router.out_features
        return replace(layer, router=Linear(router, inputs, count), normalized=True)

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights with each expert's matrices as tensors of their own."""
        names = (f"model.layers.{n}.block_sparse_moe" for n in range(self.config.num_layers))
        return unstacked(
            tensors,
            (
                (f"{name}.input_linear.weight", f"{name}.output_linear.weight", self.mixture(n))
                for n, name in enumerate(names)
            ),
        )
