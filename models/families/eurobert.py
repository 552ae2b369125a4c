"""EuroBERT: Llama whose rows see all of their text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.encoder import Encoder
from edgespec.models.families.llama import Llama

if TYPE_CHECKING:
    from edgespec.models.layers.decoder import Decoder


class EuroBert(Encoder):
    """Describes a EuroBERT checkpoint."""

    models = "EuroBERT 210M, 610M and 2.1B, and embedding models made of them"
    defaults = Llama.but(
        vocab_size=128_256,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        eos_token_id=128_001,
    )
    embedding = "embed_tokens.weight"
    beside = ("lm_head.",)

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        return replace(super().decoder(), norm=self.own_norm("norm"))
