"""What families with mixtures of experts have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from edgespec.models.formats.expert_tensors import ExpertRows, ExpertTensors, Stack
from edgespec.models.layers.elements import Linear
from edgespec.models.layers.sublayers import Mlp, MlpAndMoe, Moe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgespec.models.config import ModelConfig
    from edgespec.models.families.llama import Llama
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.expert_tensors import ByteSource, Layout
    from edgespec.models.formats.tensors import TensorSource


def experts_of(config: ModelConfig, names: tuple[str, ...]) -> tuple[int, int]:
    """Returns the number of experts, from the first of these fields that exists, and of chosen.

    Raises:
        CheckpointError: A field is missing or invalid, or more experts are chosen than there are.
    """
    fields = config.fields
    name = next((each for each in names if fields.get(each) is not None), names[0])
    experts = fields.integer(name, most=2**12)
    chosen = fields.integer("num_experts_per_tok")
    if chosen > experts:
        raise fields.invalid("num_experts_per_tok", f"must be at most {name}={experts}")
    return experts, chosen


def dense_layers(fields: ConfigFields, name: str) -> int:
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


def in_sparse_block(dense: Mlp, layer: str) -> Mlp:
    """Returns an MLP whose tensors are called like those of Mixtral's experts.

    Args:
        dense: The MLP.
        layer: What names of the layer's tensors begin with.
    """

    def called(linear: Linear, name: str) -> Linear:
        return replace(linear, weight=f"{layer}.block_sparse_moe.{name}.weight")

    return replace(
        dense,
        gate=called(dense.gate, "w1"),
        up=called(dense.up, "w3"),
        down=called(dense.down, "w2"),
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


def beside_weighed(family: Llama, index: int, width: int) -> MlpAndMoe:
    """Returns the mixture of experts of a layer, beside one that all rows read, as Qwen's.

    The output of that one is multiplied by a share that a row gives it.

    Args:
        family: The family, for its config and what the layer would have if it were dense.
        index: Number of the layer.
        width: Inner size of the expert that all rows read.
    """
    config = family.config
    name = f"{family.layers}.{index}.mlp"
    dense = family.mlp(index)
    moe = mixture(config, dense, config.fields.integer("moe_intermediate_size"))
    share = Linear(f"{name}.shared_expert_gate.weight", config.hidden_size, 1)
    return beside_shared(moe, dense, f"{name}.shared_expert", width, share)


def beside_one_of_all(family: Llama, index: int, like: Mlp | None = None) -> MlpAndMoe:
    """Returns the mixture of experts of a layer, beside one that all rows read, as DeepSeek's.

    Args:
        family: The family, for its config and what the layer would have if it were dense.
        index: Number of the layer.
        like: An MLP whose tensors are called like those of experts; None: they are as of that one.

    Raises:
        UnsupportedModelError: Experts are chosen by groups.
        CheckpointError: A field is missing or has an invalid value.
    """
    fields = family.config.fields
    dense = family.mlp(index)
    if fields.integer("n_group") != fields.integer("topk_group"):
        raise fields.unsupported("n_group", "use a model whose experts are one group")
    width = fields.integer("moe_intermediate_size")
    shared = width * fields.integer("n_shared_experts")
    factor = fields.number("routed_scaling_factor")
    moe = replace(mixture(family.config, like or dense, width), output_factor=factor)
    name = moe.router.weight.removesuffix("gate.weight")
    return beside_shared(moe, dense, f"{name}shared_experts", shared)


def by_sigmoids(both: MlpAndMoe) -> MlpAndMoe:
    """Returns a mixture whose experts are chosen by sigmoids and a bias of each (DeepSeek-V3)."""
    bias = both.moe.router.weight.removesuffix("weight") + "e_score_correction_bias"
    return replace(both, moe=replace(both.moe, sigmoid=True, least_sum=1e-20, choice_bias=bias))


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


def unstacked_by_layer(tensors: TensorSource, family: Llama) -> TensorSource:
    """Returns the weights of a family some of whose layers are mixtures, see `unstacked`."""
    found = map(family.feed_forward, range(family.config.num_layers))
    mixtures = (each.moe if isinstance(each, MlpAndMoe) else each for each in found)
    own = [each for each in mixtures if isinstance(each, Moe)]
    names = (each.experts[0].down.weight.removesuffix(".0.down_proj.weight") for each in own)
    stacks = (
        (f"{name}.gate_up_proj", f"{name}.down_proj", moe)
        for name, moe in zip(names, own, strict=True)
    )
    return unstacked(tensors, stacks)


def unstacked(tensors: TensorSource, stacks: Iterable[tuple[str, str, Moe]]) -> TensorSource:
    """Returns the weights with each expert's matrices as tensors of their own.

    Args:
        tensors: The stored tensors.
        stacks: Of each mixture, the names of the tensors with gate above up and with down of all
            its experts, [experts, out, in] or, as their shapes tell, [experts, in, out]; where
            files have no such tensors, nothing is to do.
    """
    parts = dict[str, ExpertRows]()
    for both, down, moe in stacks:
        if down not in tensors.names:
            continue
        count = len(moe.experts)
        last = moe.experts[0].down
        hidden = last.out_features
        width = last.in_features
        turned = width != hidden and tensors.shape(down) == (count, width, hidden)
        layout: Layout = "columns" if turned else "rows"
        upper = Stack(both, layout, (count, 2 * width, hidden))
        lower = Stack(down, layout, (count, hidden, width))
        for number, expert in enumerate(moe.experts):
            assert isinstance(expert, Mlp), "no file has a stack of experts without gates"
            parts[expert.gate.weight] = ExpertRows(upper, number, 0, 1, width)
            parts[expert.up.weight] = ExpertRows(upper, number, width, 1, width)
            parts[expert.down.weight] = ExpertRows(lower, number, 0, 1, hidden)
    return ExpertTensors(cast("ByteSource", tensors), parts) if parts else tensors
