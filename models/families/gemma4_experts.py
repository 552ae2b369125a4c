"""The experts of Gemma 4 26B-A4B, beside the MLP of each layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from edgespec.models.expert_tensors import ExpertTensors, Part, Stack
from edgespec.models.layers import Linear, MlpAndMoe, Moe, Norm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgespec.models.config import ModelConfig
    from edgespec.models.expert_tensors import ByteSource
    from edgespec.models.families.llama import Llama
    from edgespec.models.layers import Mlp
    from edgespec.models.tensors import TensorSource


def beside_experts(family: Llama, mlp: Mlp, index: int) -> MlpAndMoe:
    """Returns the MLP of a layer with the mixture of experts beside it.

    Args:
        family: The family, for its config and its norms.
        mlp: The MLP if it were alone.
        index: Number of the layer.

    Raises:
        CheckpointError: A field is missing or has an invalid value.
    """
    config, name = family.config, f"model.layers.{index}"
    hidden, fields = config.hidden_size, config.fields
    count, width = _sizes(config)
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


def stacked_experts(config: ModelConfig, tensors: TensorSource) -> TensorSource:
    """Returns the weights with each expert's matrices as tensors of their own."""
    layers = range(config.num_layers)
    parts = dict(part for layer in layers for part in _parts(config, layer))
    return ExpertTensors(cast("ByteSource", tensors), parts)


def _sizes(config: ModelConfig) -> tuple[int, int]:
    """Returns the number of experts and the inner size of each."""
    fields = config.fields
    return fields.integer("num_experts", most=2**12), fields.integer("moe_intermediate_size")


def _parts(config: ModelConfig, layer: int) -> Iterator[tuple[str, Part]]:
    (count, width), hidden = _sizes(config), config.hidden_size
    name = f"model.layers.{layer}.experts"
    both = Stack(f"{name}.gate_up_proj", "rows", (count, 2 * width, hidden))
    down = Stack(f"{name}.down_proj", "rows", (count, hidden, width))
    for expert in range(count):
        own = f"{name}.{expert}"
        yield f"{own}.gate_proj.weight", Part(both, expert, 0, 1, width)
        yield f"{own}.up_proj.weight", Part(both, expert, width, 1, width)
        yield f"{own}.down_proj.weight", Part(down, expert, 0, 1, hidden)
