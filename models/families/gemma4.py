"""Gemma 4 (text only)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.bundle.sublayers import DEFAULT_ROPE
from edgespec.models.families.gemma2 import Gemma2
from edgespec.models.families.gemma4_experts import beside_experts
from edgespec.models.families.layer_inputs import SIZE, with_layer_inputs
from edgespec.models.families.mixture import unstacked
from edgespec.models.layers.elements import Norm
from edgespec.models.layers.rope import rope_from_config
from edgespec.models.layers.sublayers import MlpAndMoe

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.rope import Rope
    from edgespec.models.layers.sublayers import Attention, Mlp

_FULL, _SLIDING = "full_attention", "sliding_attention"


class Gemma4(Gemma2):
    """Gemma 2 with other heads in layers without a window, and a factor behind each layer.

    The last layers may read keys and values of earlier ones, and each layer an input of its own.

    Attributes:
        input_names: See `names` of `with_layer_inputs`.
    """

    models = "Gemma 4 E2B, E4B, 26B-A4B and 31B, text only"
    input_names: ClassVar[tuple[str, str]] = ("", "")
    defaults = Gemma2.but(
        # Published configs leave out what is as here.
        vocab_size=262_144,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=30,
        num_attention_heads=8,
        max_position_embeddings=131_072,
        sliding_window=512,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        vocab_size_per_layer_input=262_144,
        hidden_size_per_layer_input=256,
        global_head_dim=512,
        rope_parameters={
            _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            _FULL: {
                "rope_type": "proportional",
                "rope_theta": 1_000_000.0,
                "partial_rotary_factor": 0.25,
            },
        },
    )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with the types of all layers; the last one has no window."""
        types = fields.get("layer_types")
        if types is None:
            count = fields.integer("num_hidden_layers", most=2**12)
            types = [_FULL if (index + 1) % 6 == 0 else _SLIDING for index in range(count)]
        if not isinstance(types, list) or not types:
            raise fields.invalid("layer_types", "must be a list of layers")
        changes: dict[str, object] = {"layer_types": [*types[:-1], _FULL]}
        if fields.get("rope_parameters") is None:
            changes["rope_parameters"] = cls.defaults["rope_parameters"]
        if fields.get("use_bidirectional_attention") == "vision":  # of the rows of a picture
            changes["use_bidirectional_attention"] = None
        return fields.changed(**changes)

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        config = self.config
        fields = self.config.fields
        decoder = super().decoder()
        for each in decoder.attentions:
            if each.head_dim != 2 * len(decoder.ropes[each.rope].inv_freq):
                raise fields.unsupported(
                    "per_layer_config", "head_dim must be the same for all layers of a type"
                )
        decoder = replace(
            decoder,
            layer_factors=tuple(
                f"model.layers.{index}.layer_scalar" for index in range(config.num_layers)
            ),
        )
        if not fields.get(SIZE):
            return decoder
        return with_layer_inputs(decoder, config, self.mlp(0).activation, self.input_names)

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights with each expert's matrices as tensors of their own."""
        mixtures = (
            (f"model.layers.{n}.experts", each.moe)
            for n in range(self.config.num_layers)
            if isinstance(each := self.feed_forward(n), MlpAndMoe)
        )
        stacks = ((f"{name}.gate_up_proj", f"{name}.down_proj", moe) for name, moe in mixtures)
        return unstacked(tensors, stacks)

    def ropes(self) -> dict[str, Rope]:
        """Returns a rotation table for layers with a window, and one for those without."""
        last = self.config.num_layers - 1  # which has no window
        return {
            DEFAULT_ROPE: rope_from_config(self.config.fields, self.config.head_dim, _SLIDING),
            _FULL: rope_from_config(self.config.fields, self._heads(last)[1], _FULL),
        }

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer, with norms of its heads, or keys of another layer."""
        name = f"model.layers.{index}.self_attn"
        config = self.config
        source = self._source(index)
        full = config.windows[index] is None
        kv_heads, head_dim = self._heads(index)
        hidden = config.hidden_size
        inner = config.heads * head_dim
        kv_inner = kv_heads * head_dim
        attention = replace(
            super().attention(index),
            q=self.linear(f"{name}.q_proj", hidden, inner),
            k=self.linear(f"{name}.k_proj", hidden, kv_inner),
            v=self.linear(f"{name}.v_proj", hidden, kv_inner),
            o=self.linear(f"{name}.o_proj", inner, hidden),
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=1.0,
            q_norm=self.norm(f"{name}.q_norm", head_dim),
            k_norm=self.norm(f"{name}.k_norm", head_dim),
            v_norm=Norm("", head_dim, config.norm_eps),
            rope=_FULL if full else DEFAULT_ROPE,
        )
        if source is not None:
            return replace(attention, k=None, v=None, k_norm=None, v_norm=None, source=source)
        if full and config.fields.flag("attention_k_eq_v"):
            return replace(attention, v=None)
        return attention

    def mlp(self, index: int) -> Mlp:
        """Returns the MLP of a layer, which may be wider where keys are those of another layer."""
        config = self.config
        mlp = super().mlp(index)
        if self._source(index) is None or not config.fields.flag("use_double_wide_mlp"):
            return mlp
        wide = 2 * config.intermediate_size
        return replace(
            mlp,
            gate=replace(mlp.gate, out_features=wide),
            up=replace(mlp.up, out_features=wide),
            down=replace(mlp.down, in_features=wide),
        )

    def feed_forward(self, index: int) -> Mlp | MlpAndMoe:
        """Returns the MLP of a layer, which may have a mixture of experts beside it."""
        mlp = self.mlp(index)
        if not self.config.fields.flag("enable_moe_block"):
            return mlp
        return beside_experts(self, mlp, index)

    def norm(self, name: str, size: int) -> Norm:
        """Returns the norm of that name; its weights are stored as they are."""
        return replace(super().norm(name, size), offset=0.0)

    def _heads(self, index: int) -> tuple[int, int]:
        """Returns the number of a layer's key and value heads, and the size of its heads.

        transformers saves both by layer, and published configs have them for all layers without a
        window.
        """
        config = self.config
        fields = self.config.fields
        if fields.get("per_layer_config") is not None:
            own = fields.group("per_layer_config").group(str(index))
            kv_heads = own.integer("num_key_value_heads", config.kv_heads)
            head_dim = own.integer("head_dim", config.head_dim)
            kv_name, size_name = "num_key_value_heads", "head_dim"
        elif config.windows[index] is None:
            own = fields
            shared = fields.flag("attention_k_eq_v")
            kv_name, size_name = "num_global_key_value_heads", "global_head_dim"
            kv_heads = own.integer(kv_name, config.kv_heads) if shared else config.kv_heads
            head_dim = own.integer(size_name)
        else:
            return config.kv_heads, config.head_dim
        if config.heads % kv_heads:
            raise own.invalid(kv_name, f"must divide num_attention_heads={config.heads}")
        if head_dim % 2:
            raise own.invalid(size_name, "must be even for RoPE")
        return kv_heads, head_dim

    def _source(self, index: int) -> int | None:
        """Returns the layer whose keys and values a layer reads; None if it has its own."""
        config = self.config
        name = "num_kv_shared_layers"
        shared = config.fields.integer(name) if config.fields.get(name) else 0
        first = config.num_layers - shared
        if index < first:
            return None
        windows = config.windows
        alike = [each for each in range(first) if windows[each] == windows[index]]
        if not alike:
            raise config.fields.invalid(
                name, f"leaves no keys and values for layer {index} to read"
            )
        return alike[-1]


class Gemma4Unified(Gemma4):
    """Gemma 4 without experts and layers' own inputs, with other defaults."""

    models = "Gemma 4 12B, text only"
    defaults = Gemma4.but(
        max_position_embeddings=262_144,
        sliding_window=1024,
        hidden_size_per_layer_input=None,
    )
