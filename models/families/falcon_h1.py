"""Falcon-H1: attention and a state space beside each other in every layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.families.llama import Llama
from edgespec.models.families.mamba import Mamba
from edgespec.models.formats.scaled import ScaledTensors
from edgespec.models.layers.sublayers import ParallelBlock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Linear
    from edgespec.models.layers.recurrent import StateSpace


class FalconH1(Llama):
    """Llama with a Mamba-2 layer beside each attention, and factors everywhere.

    Weights are read times the factors of what they give, as llama.cpp's converter stores them.
    """

    models = "Falcon-H1 0.5B to 34B, Falcon-H1-Tiny"
    defaults = Llama.but(
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        mamba_d_ssm=1024,
        mamba_n_heads=128,
        mamba_n_groups=1,
        mamba_d_state=256,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_conv_bias=True,
        mamba_norm_before_gate=True,
        embedding_multiplier=1.0,
        lm_head_multiplier=1.0,
        key_multiplier=1.0,
        attention_in_multiplier=1.0,
        attention_out_multiplier=1.0,
        ssm_in_multiplier=1.0,
        ssm_out_multiplier=1.0,
        mlp_multipliers=[1.0] * 2,
        ssm_multipliers=[1.0] * 5,
    )
    mlp_name = "feed_forward"
    norms_before = ("input_layernorm", "pre_ff_layernorm")

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config without types of layers, which are all alike."""
        return fields.changed(layer_types=None)

    def decoder(self) -> Decoder:
        """Returns the model's description; its last norm scales the logits."""
        fields = self.config.fields
        normed = fields.flag("mamba_rms_norm")
        if normed and fields.flag("mamba_norm_before_gate"):
            raise fields.unsupported("mamba_norm_before_gate", "use a model where it is false")
        if fields.flag("projectors_bias") != fields.flag("mamba_proj_bias"):
            raise fields.unsupported("projectors_bias", "use a model with biases in both, or none")
        layers = range(self.config.num_layers)
        decoder = self.of_layers((self.block(index), self.mlp(index)) for index in layers)
        norm = self.norm("model.final_layernorm", self.config.hidden_size)
        return replace(
            decoder,
            norm=replace(norm, factor=fields.number("lm_head_multiplier")),
            embedding_scale=fields.number("embedding_multiplier"),
        )

    def block(self, index: int) -> ParallelBlock:
        """Returns the state space and the attention of a layer."""
        attention = replace(self.attention(index), norm=None)
        norm = self.norm(f"{self.layers}.{index}.input_layernorm", self.config.hidden_size)
        return ParallelBlock(norm, (self.state_space(index), attention))

    def state_space(self, index: int) -> StateSpace:
        """Returns the state space of a layer."""
        fields = self.config.fields
        usual = fields.integer("mamba_expand") * self.config.hidden_size
        width = fields.integer("mamba_d_ssm", usual, most=2**20)
        mamba = Mamba.of(self, width, fields.flag("mamba_rms_norm"))
        return mamba.layer(self, f"{self.layers}.{index}.mamba", None)

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights times the factors of what they give."""
        factors: dict[str, NDArray[np.float32]] = {}
        for index in range(self.config.num_layers):
            for linear, before, behind in self._scaled(index):
                factors[linear.weight] = _of_rows(linear, behind * before)
                if linear.bias is not None:
                    factors[linear.bias] = _of_rows(linear, behind)
        changing = {name: each for name, each in factors.items() if (each != 1).any()}
        return ScaledTensors(tensors, changing) if changing else tensors

    def _scaled(self, index: int) -> Iterator[tuple[Linear, float, NDArray[np.float64]]]:
        """Yields matrices of a layer with the factors of what they read, and of what they give."""
        fields = self.config.fields
        space, attention = self.state_space(index), self.attention(index)
        mlp = self.mlp(index)
        assert attention.k is not None
        assert attention.v is not None
        read, key, attended, entered, left = (
            fields.number(f"{name}_multiplier")
            for name in ("attention_in", "key", "attention_out", "ssm_in", "ssm_out")
        )
        gate, down = fields.numbers("mlp_multipliers", 2)
        values = space.value_heads * space.value_size
        keys = space.key_heads * space.key_size
        parts = fields.numbers("ssm_multipliers", 5)
        sections = np.repeat(parts, (values, values, keys, keys, space.value_heads))
        one = np.ones(1)
        yield attention.q, read, one
        yield attention.k, read, key * one
        yield attention.v, read, one
        yield attention.o, 1.0, attended * one
        yield space.inner, entered, sections
        yield space.out, 1.0, left * one
        yield mlp.gate, 1.0, gate * one
        yield mlp.down, 1.0, down * one


def _of_rows(linear: Linear, factors: NDArray[np.float64]) -> NDArray[np.float32]:
    """Returns a factor for each row of a matrix, or one for all."""
    return np.broadcast_to(factors, linear.out_features).astype(np.float32)
