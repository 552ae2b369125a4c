"""Llama, and what shares its computation: Mistral, TinyLlama, SmolLM, Yi."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from edgespec.models.layers import Attention, Decoder, Linear, Mlp, Norm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.config import ModelConfig


class Llama:
    """Describes a Llama checkpoint; another architecture overrides what differs.

    Attributes:
        defaults: What transformers takes for a field that config.json leaves out.
    """

    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "eos_token_id": 2,
    }

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def decoder(self) -> Decoder:
        """The whole model."""
        config = self.config
        embedding = "model.embed_tokens.weight"
        head = embedding if config.tied else "lm_head.weight"
        return Decoder(
            embedding=embedding,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            layers=tuple(
                (self.attention(f"model.layers.{index}"), self.mlp(f"model.layers.{index}"))
                for index in range(config.num_layers)
            ),
            norm=self.norm("model.norm", config.hidden_size),
            lm_head=Linear(head, config.hidden_size, config.vocab_size),
            tied=config.tied,
            rope=config.rope,
            context_length=config.context_length,
        )

    def attention(self, layer: str) -> Attention:
        """The attention of a layer, given the layer's name."""
        config = self.config
        hidden = config.hidden_size
        inner, kv_inner = config.heads * config.head_dim, config.kv_heads * config.head_dim
        return Attention(
            norm=self.norm(f"{layer}.input_layernorm", hidden),
            q=self.linear(f"{layer}.self_attn.q_proj", hidden, inner),
            k=self.linear(f"{layer}.self_attn.k_proj", hidden, kv_inner),
            v=self.linear(f"{layer}.self_attn.v_proj", hidden, kv_inner),
            o=self.linear(f"{layer}.self_attn.o_proj", inner, hidden),
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
        )

    def mlp(self, layer: str) -> Mlp:
        """The MLP of a layer, given the layer's name."""
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        return Mlp(
            norm=self.norm(f"{layer}.post_attention_layernorm", hidden),
            gate=self.linear(f"{layer}.mlp.gate_proj", hidden, inner),
            up=self.linear(f"{layer}.mlp.up_proj", hidden, inner),
            down=self.linear(f"{layer}.mlp.down_proj", inner, hidden),
        )

    def norm(self, name: str, size: int) -> Norm:
        """The normalization of that name."""
        return Norm(f"{name}.weight", size, self.config.norm_eps)

    def linear(self, name: str, in_features: int, out_features: int) -> Linear:
        """The projection of that name, with a bias where the architecture has one."""
        bias = f"{name}.bias" if self.has_bias(name) else None
        return Linear(f"{name}.weight", in_features, out_features, bias)

    def has_bias(self, name: str) -> bool:
        """Whether the projection of that name has a bias."""
        return self.config.mlp_bias if ".mlp." in name else self.config.attention_bias


class Mistral(Llama):
    """Llama's computation under other defaults; its sliding window is refused where in use."""

    defaults: ClassVar[Mapping[str, object]] = {
        **Llama.defaults,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    }
