"""What families with mixtures of experts have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.layers import Linear, Mlp, Moe

if TYPE_CHECKING:
    from edgespec.models.config import ModelConfig
    from edgespec.models.families.llama import Llama


def experts_of(config: ModelConfig, names: tuple[str, ...]) -> tuple[int, int]:
    """Returns the number of experts, from the first of these fields that exists, and of chosen.

    Raises:
        CheckpointError: A field is missing or invalid, or more experts are chosen than there are.
    """
    fields = config.fields
    name = next((each for each in names if fields.get(each) is not None), names[0])
    experts, chosen = fields.integer(name, most=2**12), fields.integer("num_experts_per_tok")
    if chosen > experts:
        raise fields.invalid("num_experts_per_tok", f"must be at most {name}={experts}")
    return experts, chosen


def mixture(family: Llama, dense: Mlp, index: int, width: int) -> Moe:
    """Returns the mixture of experts of a layer, with tensors named as in Qwen3-MoE and OLMoE.

    Args:
        family: The family, for its config and its biases.
        dense: The layer's MLP if it were dense, for its norm, its activation and its factor.
        index: Number of the layer.
        width: Inner size of an expert.

    Raises:
        CheckpointError: A field is missing or has an invalid value.
    """
    config, name = family.config, f"model.layers.{index}.mlp"
    hidden = config.hidden_size
    count, chosen = experts_of(config, ("num_experts", "num_local_experts"))

    def expert(number: int) -> Mlp:
        own = f"{name}.experts.{number}"
        return replace(
            dense,
            norm=None,
            output_factor=1.0,
            gate=Linear(f"{own}.gate_proj.weight", hidden, width),
            up=Linear(f"{own}.up_proj.weight", hidden, width),
            down=Linear(f"{own}.down_proj.weight", width, hidden),
        )

    return Moe(
        norm=dense.norm,
        router=Linear(f"{name}.gate.weight", hidden, count),
        experts=tuple(map(expert, range(count))),
        top_k=chosen,
        normalized=config.fields.flag("norm_topk_prob"),
        output_factor=dense.output_factor,
    )
