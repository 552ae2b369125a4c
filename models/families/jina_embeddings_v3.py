"""jina-embeddings-v3: XLM-RoBERTa with rotated places."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from edgespec.models.config import plain_activation_of
from edgespec.models.families.nomic_bert import NomicBert
from edgespec.models.layers.sublayers import PlainMlp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.layers.sublayers import FeedForward


class JinaEmbeddingsV3(NomicBert):
    """Nomic's BERT with biases, and without a gate in its MLP."""

    models = "jina-embeddings-v3 in the form of transformers (`-hf`), without its tasks' adapters"
    defaults = NomicBert.but(
        hidden_act="gelu",
        vocab_size=250_002,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        max_position_embeddings=8194,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        rope_theta=20_000.0,
    )
    prefixes = ("roberta.",)
    renamed: ClassVar[Mapping[str, str]] = {
        **NomicBert.renamed,
        r"\.mixer\.Wqkv\.": ".self_attn.Wqkv.",
        r"\.mixer\.out_proj\.": ".self_attn.o_proj.",
        r"\.fc1\.": ".up_proj.",
    }

    def feed_forward(self, index: int) -> FeedForward:
        """Returns the MLP of a layer."""
        config = self.config
        name = f"{self.layers}.{index}"
        sizes = config.hidden_size, config.intermediate_size
        return PlainMlp(
            norm=None,
            up=self.linear(f"{name}.mlp.up_proj", *sizes),
            down=self.linear(f"{name}.mlp.down_proj", *sizes[::-1]),
            activation=plain_activation_of(config.fields, self.activation_field),
            sum_norm=self.own_norm(f"{name}.post_mlp_layernorm"),
        )

    def has_bias(self, name: str) -> bool:
        """Returns that all projections have one."""
        return True
