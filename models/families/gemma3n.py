"""Gemma 3n (text only)."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from edgespec.models.families.gemma4 import Gemma4
from edgespec.models.families.layer_inputs import with_layer_inputs
from edgespec.models.layers.decoder import AltUp
from edgespec.models.layers.elements import Linear
from edgespec.models.layers.sublayers import AltUpLayer, Attention, Injection, Mlp

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.sublayers import Sublayer

_FULL, _SLIDING = "full_attention", "sliding_attention"
_SPARSE, _WIDTH = "activation_sparsity_pattern", "intermediate_size"
_MOST_STREAMS = 8


class Gemma3n(Gemma4):
    """Gemma 4's attention, and streams beside the one that layers read (AltUp, Laurel)."""

    models = "Gemma 3n E2B and E4B, text only"
    defaults = Gemma4.but(
        vocab_size=262_400,
        hidden_size=2048,
        intermediate_size=16_384,
        num_hidden_layers=35,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        final_logit_softcapping=30.0,
        num_kv_shared_layers=15,
        rope_parameters={
            _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            _FULL: {"rope_type": "default", "rope_theta": 1_000_000.0},
        },
        altup_active_idx=0,
        altup_correct_scale=True,
        altup_num_inputs=4,
        laurel_rank=64,
    )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with types, widths and sparsities of all layers; all heads are alike."""
        count = fields.integer("num_hidden_layers", most=2**12)
        types, widths, sparse = (fields.get(name) for name in ("layer_types", _WIDTH, _SPARSE))
        if types is None:
            types = [_FULL if (index + 1) % 5 == 0 else _SLIDING for index in range(count)]
        if not isinstance(widths, list):
            widths = [fields.integer(_WIDTH)] * count
        if sparse is None:
            sparse = [0.95 if index < 10 < count else 0.0 for index in range(count)]
        for name, values in ((_WIDTH, widths), (_SPARSE, sparse)):
            numbers = (
                [each for each in values if isinstance(each, int | float)]
                if isinstance(values, list)
                else []
            )
            if len(numbers) != count:
                raise fields.invalid(name, f"must be a list of {count} numbers")
        changes: dict[str, object] = {
            "layer_types": types,
            _WIDTH: max(widths),
            "widths": widths,
            _SPARSE: sparse,
            "global_head_dim": fields.integer("head_dim"),
        }
        if fields.get("rope_parameters") is None:
            changes["rope_parameters"] = cls.defaults["rope_parameters"]
        return fields.changed(**changes)

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        config = self.config
        fields = self.config.fields
        if fields.get("altup_active_idx") != 0:
            raise fields.unsupported("altup_active_idx", "only 0 is")
        count = fields.integer("altup_num_inputs", most=_MOST_STREAMS)
        hidden = config.hidden_size
        layers = tuple(self._plain(index) for index in range(config.num_layers))
        plain = with_layer_inputs(
            replace(self.of_layers(layers), embedding_scale=hidden**0.5),
            config,
            self.mlp(0).activation,
        )

        def projections(name: str) -> tuple[Linear, ...]:
            places = (f"model.altup_{name}.{n}.weight" for n in range(count - 1))
            return tuple(Linear(place, hidden, hidden) for place in places)

        return replace(
            plain,
            layers=tuple((self._layer(n, *layer),) for n, layer in enumerate(plain.layers)),
            logit_softcap=self.limit("final_logit_softcapping"),
            altup=AltUp(projections("projections"), projections("unembed_projections")),
        )

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        return replace(super().attention(index), rope=self._rope(index))

    def mlp(self, index: int) -> Mlp:
        """Returns the MLP of a layer, of whose gates only the largest may count."""
        fields = self.config.fields
        mlp = super().mlp(index)
        widths = fields.get("widths")
        sparse = fields.get(_SPARSE)
        assert isinstance(widths, list)
        assert isinstance(sparse, list)
        width = int(widths[index])
        share = float(sparse[index])
        if not 0 <= share < 1:
            raise fields.invalid(_SPARSE, "must be from 0 to below 1")
        return replace(
            mlp,
            gate=replace(mlp.gate, out_features=width),
            up=replace(mlp.up, out_features=width),
            down=replace(mlp.down, in_features=width),
            # In single precision, in which GGUF files hold it.
            cutoff=round(NormalDist().inv_cdf(share), 6) if share else None,
        )

    def _rope(self, index: int) -> str:
        return super().attention(index).rope

    def _plain(self, index: int) -> tuple[Sublayer, ...]:
        return self.attention(index), self.mlp(index)

    def _layer(self, index: int, *parts: Sublayer) -> AltUpLayer:
        attention, mlp, injection = parts
        assert isinstance(attention, Attention)
        assert isinstance(mlp, Mlp)
        assert isinstance(injection, Injection)
        fields = self.config.fields
        hidden = self.config.hidden_size
        name = f"{self.layers}.{index}"
        rank = fields.integer("laurel_rank", most=2**16)
        streams = fields.integer("altup_num_inputs", most=_MOST_STREAMS)
        altup = f"{name}.altup"
        scaled = fields.flag("altup_correct_scale")
        router = replace(self.norm(f"{altup}.router_norm", hidden), factor=1 / hidden)
        return AltUpLayer(
            norm=None,
            attention=attention,
            mlp=mlp,
            injection=injection,
            left=Linear(f"{name}.laurel.linear_left.weight", hidden, rank),
            right=Linear(f"{name}.laurel.linear_right.weight", rank, hidden),
            laurel_norm=self.norm(f"{name}.laurel.post_laurel_norm", hidden),
            router_norm=router,
            router=Linear(f"{altup}.modality_router.weight", hidden, streams),
            predict=Linear(f"{altup}.prediction_coefs.weight", streams, streams**2),
            correct=Linear(f"{altup}.correction_coefs.weight", streams, streams),
            scale=f"{altup}.correct_output_scale" if scaled else None,
            streams=streams,
        )
