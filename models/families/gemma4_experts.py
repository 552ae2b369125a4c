"""The experts of Gemma 4 26B-A4B, beside the MLP of each layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.layers.elements import Linear, Norm
from edgespec.models.layers.sublayers import MlpAndMoe, Moe

if TYPE_CHECKING:
    from edgespec.models.families.llama import Llama
    from edgespec.models.layers.sublayers import Mlp


def beside_experts(family: Llama, mlp: Mlp, index: int) -> MlpAndMoe:
    """Returns the MLP of a layer with the mixture of experts beside it.

    Args:
        family: The family, for its config and its norms.
        mlp: The MLP if it were alone.
        index: Number of the layer.

    Raises:
        CheckpointError: A field is missing or has an invalid value.
    """
    config = family.config
    name = f"model.layers.{index}"
    hidden = config.hidden_size
    fields = config.fields
    count = fields.integer("num_experts", most=2**12)
    width = fields.integer("moe_intermediate_size")
    chosen = fields.integer("top_k_experts")
    if chosen > count:
        raise fields.invalid("top_k_experts", f"must be at most num_experts={count}")

    def expert(number: int) -> Mlp:
        own = f"{name}.experts.{number}"
        return replace(
            mlp,
            norm=None,
            gate=Linear(f"{own}.gate_proj.weight", hidden, width),
            up=Linear(f"{own}.up_proj.weight", hidden, width),
            down=Linear(f"{own}.down_proj.weight", width, hidden),
            post_norm=None,
        )

    moe = Moe(
        norm=family.norm(f"{name}.pre_feedforward_layernorm_2", hidden),
        router=Linear(f"{name}.router.proj.weight", hidden, count),
        experts=tuple(map(expert, range(count))),
        top_k=chosen,
        normalized=True,
        router_norm=Norm(f"{name}.router.scale", hidden, config.norm_eps, factor=hidden**-0.5),
        expert_factors=f"{name}.router.per_expert_scale",
        post_norm=family.norm(f"{name}.post_feedforward_layernorm_2", hidden),
    )
    own = replace(mlp, post_norm=family.norm(f"{name}.post_feedforward_layernorm_1", hidden))
    return MlpAndMoe(own, moe, post_norm=mlp.post_norm)
