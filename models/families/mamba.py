"""Mamba-2 layers, as Falcon-H1, Granite 4 and Nemotron-H have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.models.config import activation_of
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
        normed: Whether results are normalized.
    """

    heads: int
    head_size: int
    groups: int
    state_size: int
    kernel: int
    conv_bias: bool
    bias: bool
    normed: bool = True

    @classmethod
    def of(cls, family: Llama, width: int, normed: bool = True) -> Mamba:
        """Reads the sizes of a config that has them as `mamba_*`.

        Args:
            family: The family, for its config.
            width: Size of all heads together.
            normed: See above.

        Raises:
            UnsupportedModelError: The activation is not SiLU.
            CheckpointError: Sizes contradict each other.
        """
        fields = family.config.fields
        if activation_of(fields, family.activation_field) != "silu":
            raise fields.unsupported(family.activation_field, "only silu is, of state spaces")
        heads = fields.integer("mamba_n_heads")
        size = fields.get("mamba_d_head")
        if width % heads or size not in (None, "auto", width // heads):
            raise fields.invalid("mamba_d_head", f"times mamba_n_heads={heads} must be {width}")
        return cls(
            heads=heads,
            head_size=width // heads,
            groups=fields.integer("mamba_n_groups"),
            state_size=fields.integer("mamba_d_state"),
            kernel=fields.integer("mamba_d_conv"),
            conv_bias=fields.flag("mamba_conv_bias"),
            bias=fields.flag("mamba_proj_bias"),
            normed=normed,
        )

    def layer(self, family: Llama, name: str, norm: Norm | None) -> StateSpace:
        """Returns a layer.

        Args:
            family: The family, for its config and its norms.
            name: What names of its tensors begin with.
            norm: Applied to its input; None: no normalization.

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
        shift = f"{name}.conv1d.bias" if self.conv_bias else None

        def linear(part: str, in_features: int, out_features: int) -> Linear:
            bias = f"{name}.{part}.bias" if self.bias else None
            return Linear(f"{name}.{part}.weight", in_features, out_features, bias)

        return StateSpace(
            norm=norm,
            inner=linear("in_proj", hidden, values + channels + self.heads),
            convolutions=(Convolution(f"{name}.conv1d.weight", channels, self.kernel, shift),),
            log_decay=f"{name}.A_log",
            decay_bias=f"{name}.dt_bias",
            skip=f"{name}.D",
            result_norm=family.norm(f"{name}.norm", values) if self.normed else None,
            out=linear("out_proj", values, hidden),
            key_heads=self.groups,
            value_heads=self.heads,
            value_size=self.head_size,
            key_size=self.state_size,
        )
