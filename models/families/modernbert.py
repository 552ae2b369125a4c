"""ModernBERT: rotated places, and windows to both sides in two of three layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.bundle.manifest import MEAN
from edgespec.bundle.sublayers import ALL, DEFAULT_ROPE
from edgespec.models.config import plain_activation_of
from edgespec.models.families.encoder import Encoder
from edgespec.models.families.llama import Llama
from edgespec.models.families.partial_rotation import split
from edgespec.models.formats.parts import Parts, TensorRows
from edgespec.models.layers.decoder import Scorer, TokenRows
from edgespec.models.layers.elements import LayerNorm, Linear
from edgespec.models.layers.rope import LOCAL_ROPE, ropes_by_layer_type

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Norm
    from edgespec.models.layers.rope import Rope
    from edgespec.models.layers.sublayers import Attention, Mlp


class ModernBert(Encoder):
    """Describes a ModernBERT checkpoint."""

    models = "ModernBERT, and GTE, Granite embedding R2 and others stored so"
    defaults = Llama.but(
        vocab_size=50368,
        hidden_size=768,
        intermediate_size=1152,
        num_hidden_layers=22,
        num_attention_heads=12,
        hidden_activation="gelu",
        max_position_embeddings=8192,
        norm_eps=1e-5,
        global_rope_theta=160_000.0,
        local_rope_theta=10_000.0,
        global_attn_every_n_layers=3,
        local_attention=128,
        classifier_activation="gelu",
        eos_token_id=None,
    )
    activation_field = "hidden_activation"
    norms_before = ("attn_norm", "mlp_norm")
    beside = ("head.", "decoder.")
    embedding = "embeddings.tok_embeddings.weight"
    fused = "layers.{}.attn.Wqkv"
    labels = "classifier.weight"

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """See `Llama`."""
        every = fields.integer("global_attn_every_n_layers")
        types = fields.get("layer_types") or [
            "sliding_attention" if index % every else "full_attention"
            for index in range(fields.integer("num_hidden_layers"))
        ]
        return fields.changed(
            layer_norm_eps=fields.get("norm_eps"),
            layer_types=types,
            rope_theta=fields.get("global_rope_theta"),
        )

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        no_bias: dict[str, tuple[object, ...]] = {"norm_bias": (None, False)}
        self.config.fields.only(no_bias, "use a model whose norms have no biases")
        rows = TokenRows(norm=self.own_norm("embeddings.norm"))
        return replace(super().decoder(), norm=self.own_norm("final_norm"), token_rows=rows)

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; files have one tensor for gate and up, too."""
        parts = dict[str, TensorRows]()
        for index in range(self.config.num_layers):
            mlp = self.mlp(index)
            parts |= split(f"{self.layers}.{index}.mlp.Wi.weight", mlp.gate, mlp.up)
        return Parts(super().arranged(tensors), parts)

    def ropes(self) -> dict[str, Rope]:
        """Returns a rotation table for layers without a window, and one for those with."""
        theta = self.config.fields.number("local_rope_theta")
        return ropes_by_layer_type(self.config.fields, self.config.head_dim, theta)

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer; what the first one reads is normalized already."""
        made = super().attention(index)
        windowed = self.config.windows[index] is not None
        half = self.config.fields.integer("local_attention") // 2
        return replace(
            made,
            norm=made.norm if index else None,
            o=replace(made.o, weight=f"{self.layers}.{index}.attn.Wo.weight"),
            mask=f"around:{half}" if windowed else ALL,
            rope=LOCAL_ROPE if windowed else DEFAULT_ROPE,
        )

    def mlp(self, index: int) -> Mlp:
        """Returns the MLP of a layer."""
        made = super().mlp(index)
        return replace(made, down=replace(made.down, weight=f"{self.layers}.{index}.mlp.Wo.weight"))

    @classmethod
    def scored(cls, fields: ConfigFields) -> str:
        """See `Encoder`."""
        return MEAN if fields.get("classifier_pooling") == "mean" else super().scored(fields)

    def scorer(self) -> Scorer:
        """See `Encoder`."""
        fields = self.config.fields
        plain: dict[str, tuple[object, ...]] = {
            "classifier_pooling": (None, "cls", "mean"),
            "classifier_bias": (None, False),
        }
        fields.only(plain, "use a model that ranks by the first token or the mean")
        hidden = self.config.hidden_size
        return Scorer(
            out=Linear("classifier.weight", hidden, 1, "classifier.bias"),
            dense=Linear("head.dense.weight", hidden, hidden),
            activation=plain_activation_of(fields, "classifier_activation"),
            norm=self.own_norm("head.norm"),
            of_mean=self.scored(fields) == MEAN,
        )

    def norm(self, name: str, size: int) -> Norm:
        """Returns the norm of that name, which subtracts the mean and adds nothing."""
        return LayerNorm(f"{name}.weight", size, self.config.norm_eps, bias=None)

    def has_bias(self, name: str) -> bool:
        """Returns that no projection has a bias; published models have none."""
        fields = self.config.fields
        if fields.flag("attention_bias") or fields.flag("mlp_bias"):
            raise fields.unsupported("attention_bias", "use a model without biases")
        return False
