"""EmbeddingGemma 2 (text only): Gemma 4 whose rows see both ways."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.bundle.sublayers import ALL
from edgespec.models.families.gemma4 import Gemma4
from edgespec.models.layers.decoder import Dense
from edgespec.models.layers.elements import Linear

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder

_FULL, _SLIDING = "full_attention", "sliding_attention"
_HEADS = "per_layer_config"


class EmbeddingGemma2(Gemma4):
    """Gemma 4 with layers' own inputs by the embedding alone, and vectors wider than rows."""

    models = "EmbeddingGemma 2, text only"
    defaults = Gemma4.but(
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=262_144,
        vocab_size_per_layer_input=None,
        hidden_size_per_layer_input=512,
        num_global_key_value_heads=1,
        embedding_dim=768,
        rope_parameters={
            _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            _FULL: {"rope_type": "default", "rope_theta": 1_000_000.0},
        },
    )
    embeds = True
    input_names = ("ple.", "ple_block.")

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with types of all layers, and heads of those without a window."""
        made = super().usual(fields)
        types = made.get("layer_types")
        if made.get(_HEADS) is not None or not isinstance(types, list):
            return made
        own = {
            "head_dim": made.get("global_head_dim"),
            "num_key_value_heads": made.get("num_global_key_value_heads"),
        }
        wide = {str(index): own for index, each in enumerate(types) if each == _FULL}
        return made.changed(**{_HEADS: wide})

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        width = self.config.fields.integer("embedding_dim")
        out = Linear("model.embedding_projection.weight", self.config.hidden_size, width)
        return replace(super().decoder(), dense=(Dense(out),))

    def mask(self, index: int) -> str:
        """Returns the name of the mask of a layer; a window has as many rows to each side."""
        window = self.config.windows[index]
        return ALL if window is None else f"around:{window}"
