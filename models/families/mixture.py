"""What families with mixtures of experts have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from edgespec.models.elements import Linear
from edgespec.models.expert_tensors import ExpertTensors, Part, Stack
from edgespec.models.layers import Mlp, MlpAndMoe, Moe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgespec.models.config import ModelConfig
    from edgespec.models.expert_tensors import ByteSource
    from edgespec.models.fields import Fields
    from edgespec.models.tensors import TensorSource


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


def dense_layers(fields: Fields, name: str) -> int:
    """Returns how many of the first layers are dense, by a field that may be 0 or null.

    Raises:
        CheckpointError: It is something else.
    """
    return fields.integer(name) if fields.get(name) else 0


def mixture(config: ModelConfig, dense: Mlp, width: int) -> Moe:
    """Returns the mixture of experts of a layer, with tensors named as in Qwen3-MoE and OLMoE.

    Args:
        config: The config.
        dense: The layer's MLP if it were dense, for its names, norm, activation and factor.
        width: Inner size of an expert.

    Raises:
        CheckpointError: A field is missing or has an invalid value.
    """
    hidden, (name, *_) = config.hidden_size, dense.gate.weight.rsplit(".", 2)
    count, chosen = experts_of(config, ("num_experts", "num_local_experts", "n_routed_experts"))
    return Moe(
        norm=dense.norm,
        router=Linear(f"{name}.gate.weight", hidden, count),
        experts=tuple(_expert(dense, f"{name}.experts.{n}", width) for n in range(count)),
        top_k=chosen,
        normalized=config.fields.flag("norm_topk_prob"),
        output_factor=dense.output_factor,
    )


def beside_shared(
    moe: Moe, dense: Mlp, name: str, width: int, share: Linear | None = None
) -> MlpAndMoe:
    """Returns a mixture of experts beside one that all rows read.

    Args:
        moe: The mixture.
        dense: The layer's MLP if it were dense, for its norm and its activation.
        name: What names of the shared expert's tensors begin with.
        width: Its inner size.
        share: See `MlpAndMoe`.
    """
    shared = _expert(dense, name, width)
    return MlpAndMoe(shared, replace(moe, norm=None), norm=dense.norm, share=share)


def _expert(dense: Mlp, name: str, width: int) -> Mlp:
    """Returns an MLP whose tensors are called as those of a dense one, but for what is before."""
    hidden = dense.gate.in_features

    def linear(like: Linear, in_features: int, out_features: int) -> Linear:
        own = ".".join((name, *like.weight.rsplit(".", 2)[1:]))
        return Linear(own, in_features, out_features)

    return replace(
        dense,
        norm=None,
        output_factor=1.0,
        gate=linear(dense.gate, hidden, width),
        up=linear(dense.up, hidden, width),
        down=linear(dense.down, width, hidden),
    )


def unstacked(tensors: TensorSource, stacks: Iterable[tuple[str, str, Moe]]) -> TensorSource:
    """Returns the weights with each expert's matrices as tensors of their own.

    Args:
        tensors: The stored tensors.
        stacks: Of each mixture, the names of the tensors with gate above up and with down of all
            its experts, [experts, out, in]; where files have no such tensors, nothing is to do.
    """
    parts = dict[str, Part]()
    for both, down, moe in stacks:
        if down not in tensors.names:
            continue
        count, last = len(moe.experts), moe.experts[0].down
        hidden, width = last.out_features, last.in_features
        upper = Stack(both, "rows", (count, 2 * width, hidden))
        lower = Stack(down, "rows", (count, hidden, width))
        for number, expert in enumerate(moe.experts):
            parts[expert.gate.weight] = Part(upper, number, 0, 1, width)
            parts[expert.up.weight] = Part(upper, number, width, 1, width)
            parts[expert.down.weight] = Part(lower, number, 0, 1, hidden)
    return ExpertTensors(cast("ByteSource", tensors), parts) if parts else tensors
