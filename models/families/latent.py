"""What families have in common that attend to latent vectors (MLA), with experts in most layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.bundle.sublayers import DEFAULT_ROPE
from edgespec.models.families.llama import Llama
from edgespec.models.families.mixture import beside_one_of_all, dense_layers, unstacked_by_layer
from edgespec.models.families.partial_rotation import ordered
from edgespec.models.formats.parts import Parts, TensorRows
from edgespec.models.layers.elements import Linear
from edgespec.models.layers.rope import rope_from_config, rotation_order, scores_factor
from edgespec.models.layers.sublayers import LatentAttention

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.rope import Rope
    from edgespec.models.layers.sublayers import Mlp, MlpAndMoe

_NORM_EPS = 1e-6  # of latents, whatever other norms have


class Latent(Llama):
    """Llama with attention to latents, and mixtures of experts beside one that all rows read."""

    defaults = Llama.but(
        first_k_dense_replace=0,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        rope_interleave=True,
    )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config whose only head of keys is of latents, with RoPE of what is rotated."""
        scaling = fields.group("rope_parameters").values
        own = {
            **fields.values,
            "num_key_value_heads": 1,
            "head_dim": fields.integer("qk_rope_head_dim"),
            "rope_parameters": {**scaling, "partial_rotary_factor": 1.0} if scaling else None,
            "partial_rotary_factor": None,
        }
        return replace(fields, values=own)

    def ropes(self) -> dict[str, Rope]:
        """Returns the rotation table, of the part of queries and keys that is rotated."""
        return {DEFAULT_ROPE: rope_from_config(self.config.fields, self.config.head_dim)}

    def attention(self, index: int) -> LatentAttention:
        """Returns the attention of a layer."""
        config = self.config
        fields = self.config.fields
        name = f"{self.layers}.{index}"
        hidden = config.hidden_size
        heads = config.heads
        own = f"{name}.self_attn"
        turned = config.head_dim
        latent, still, value = (
            fields.integer(each, most=2**16)
            for each in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
        )
        q_in = None
        q_in_norm = None
        asking = hidden
        q = f"{own}.q_proj.weight"
        if fields.get("q_lora_rank") is not None:
            asking = fields.integer("q_lora_rank", most=2**16)
            q_in = self.linear(f"{own}.q_a_proj", hidden, asking)
            q_in_norm = replace(self.norm(f"{own}.q_a_layernorm", asking), eps=_NORM_EPS)
            q = f"{own}.q_b_proj.weight"
        return LatentAttention(
            norm=self.norm(f"{name}.input_layernorm", hidden),
            q_in=q_in,
            q_in_norm=q_in_norm,
            q=Linear(q, asking, heads * (still + turned)),
            k=self.linear(f"{own}.kv_a_proj_with_mqa", hidden, latent + turned),
            latent_norm=replace(self.norm(f"{own}.kv_a_layernorm", latent), eps=_NORM_EPS),
            keys=tuple(Linear(f"{own}.k_b_proj.{n}.weight", still, latent) for n in range(heads)),
            v=None,
            values=tuple(Linear(f"{own}.v_b_proj.{n}.weight", latent, value) for n in range(heads)),
            o=self.linear(f"{own}.o_proj", heads * value, hidden),
            heads=heads,
            kv_heads=1,
            head_dim=turned + latent,
            scale=(still + turned) ** -0.5 * scores_factor(fields),
        )

    def feed_forward(self, index: int) -> Mlp | MlpAndMoe:
        """Returns the MLP of a layer, or its mixture of experts."""
        return self.mlp(index) if self.is_dense(index) else beside_one_of_all(self, index)

    def is_dense(self, index: int) -> bool:
        """Returns whether a layer has an MLP in place of experts, as the first may."""
        return index < dense_layers(self.config.fields, "first_k_dense_replace")

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights.

        Files have what heads make of latents in one tensor, keys and values of each head by turns,
        and what is rotated in another order.
        """
        parts = dict[str, TensorRows]()
        for index in range(self.config.num_layers):
            parts |= self._parts(f"{self.layers}.{index}.self_attn", self.attention(index), tensors)
        return Parts(unstacked_by_layer(tensors, self), parts)

    def _parts(
        self, name: str, layer: LatentAttention, tensors: TensorSource
    ) -> dict[str, TensorRows]:
        parts = dict[str, TensorRows]()
        turned = layer.rotated
        still = layer.keys[0].in_features
        value = layer.values[0].out_features
        both = f"{name}.kv_b_proj.weight"
        if both in tensors.names:  # and not parted already, as in GGUF files
            total = layer.heads * (still + value)
            for number, (key, own) in enumerate(zip(layer.keys, layer.values, strict=True)):
                start = number * (still + value)
                rows = np.arange(start, start + still + value)
                parts[key.weight] = TensorRows(both, rows[:still], total, turned=True)
                parts[own.weight] = TensorRows(both, rows[still:], total)
        if self.config.fields.flag("rope_interleave"):
            assert layer.k is not None
            order = rotation_order(turned, turned, interleaved=True)
            for linear, before in ((layer.q, still), (layer.k, layer.latent_norm.size)):
                of_head = np.append(np.arange(before), before + order)
                parts |= ordered(linear, of_head)
        return parts
