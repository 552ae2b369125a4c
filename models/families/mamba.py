"""Mamba-2 layers, as Granite 4 and Nemotron-H have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.models.layers.elements import Convolution, Linear
from edgespec.models.layers.recurrent import StateSpace

if TYPE_CHECKING:
    from edgespec.models.families.llama import Llama
    from edgespec.models.layers.elements import Norm

_LIMIT = "time_step_limit"
# JSON has no infinity: transformers writes it as an object.
_NONE = (None, [0.0, float("inf")], [0.0, {"__float__": "Infinity"}])


@dataclass(frozen=True)
class Mamba:
    """Sizes of a model's Mamba-2 layers, and which biases they have.

    Attributes:
        heads: Number of heads, a multiple of groups.
        head_size: Size of a head.
        groups: Number of groups of heads.
        state_size: Size of the state of each of a head's numbers.
        kernel: Number of positions of the convolution.
        conv_bias: Whether the convolution has a bias.
        bias: Whether the projections have biases.
    """

    heads: int
    head_size: int
    groups: int
    state_size: int
    kernel: int
    conv_bias: bool
    bias: bool

    def layer(self, family: Llama, name: str, norm: Norm) -> StateSpace:
        """Returns a layer.

        Args:
            family: The family, for its config and its norms.
            name: What names of its tensors begin with.
            norm: Applied to its input.

        Raises:
            UnsupportedModelError: Steps are limited.
            CheckpointError: Sizes contradict each other.
        """
        fields = family.config.fields
        hidden = family.config.hidden_size
        if self.heads % self.groups:
            raise fields.unsupported(
                "model_type", f"{self.heads} heads are no multiple of {self.groups} groups"
            )
        if fields.get(_LIMIT) not in _NONE:
            raise fields.unsupported(_LIMIT, "use a model whose steps have no limits")
        values = self.heads * self.head_size
        channels = values + 2 * self.groups * self.state_size

        def linear(part: str, in_features: int, out_features: int) -> Linear:
            bias = f"{name}.{part}.bias" if self.bias else None
            return Linear(f"{name}.{part}.weight", in_features, out_features, bias)

        return StateSpace(
            norm=norm,
            inner=linear("in_proj", hidden, values + channels + self.heads),
            convolution=Convolution(
                f"{name}.conv1d.weight",
                channels,
                self.kernel,
                f"{name}.conv1d.bias" if self.conv_bias else None,
            ),
            log_decay=f"{name}.A_log",
            decay_bias=f"{name}.dt_bias",
            skip=f"{name}.D",
            result_norm=family.norm(f"{name}.norm", values),
            out=linear("out_proj", values, hidden),
            key_heads=self.groups,
            value_heads=self.heads,
            value_size=self.head_size,
            key_size=self.state_size,
        )
