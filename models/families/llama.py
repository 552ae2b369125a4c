"""Llama, and models with the same computation: Mistral, TinyLlama, SmolLM, Yi."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.bundle.sublayers import ALL, CAUSAL, DEFAULT_ROPE
from edgespec.models.config import activation_of
from edgespec.models.layers.decoder import Decoder
from edgespec.models.layers.elements import Linear, Norm
from edgespec.models.layers.rope import rope_from_config
from edgespec.models.layers.sublayers import Attention, Mlp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgespec.models.config import ModelConfig
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.rope import Rope
    from edgespec.models.layers.sublayers import FeedForward, Sublayer

QKV = (".q_proj", ".k_proj", ".v_proj")
"""What names of the projections to queries, keys and values end with."""


class Llama:
    """Describes a Llama checkpoint; subclasses override what differs.

    Attributes:
        models: Models that are described, for docs/models.md; a subclass that does not set it is
            described by the first line of its module.
        published: Published weights with which it was run, by a class of its own; else none.
        defaults: Default values of transformers for fields that config.json leaves out.
        mlp_name: Name of the MLP of a layer.
        activation_field: Name of the field of config.json with the MLP's activation.
        norms_before: Names of the norms of what attention and MLP read; empty: there is none.
        norms_behind: The same of what they give.
        norms_of_heads: The same of queries and keys.
        biased: What names of projections end with that have a bias if the config says so.
        heads_together: Whether these are of all heads as one vector, and not of each.
        embeds: Whether its models make embeddings, or scores, and never text.
        beside: What names of tensors begin with that are for other uses of the model.
        splitting: How texts are split where a folder has its tokenizer as a file of tiktoken, which
            does not say so: the name that GGUF files have for it; empty: there is no such folder.

    Args:
        config: The config.
        layers: What names of the layers' tensors begin with.
    """

    models: ClassVar[str] = (
        "Llama 2 and 3, TinyLlama, SmolLM and SmolLM2, Yi, others stored as Llama"
    )
    published: ClassVar[str] = "SmolLM2-135M"
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "eos_token_id": 2,
    }

    mlp_name: ClassVar[str] = "mlp"
    activation_field: ClassVar[str] = "hidden_act"
    norms_before: ClassVar[tuple[str, str]] = ("input_layernorm", "post_attention_layernorm")
    norms_behind: ClassVar[tuple[str, str]] = ("", "")
    norms_of_heads: ClassVar[tuple[str, str]] = ("", "")
    heads_together: ClassVar[bool] = False
    biased: ClassVar[tuple[str, ...]] = ("",)
    embeds: ClassVar[bool] = False
    splitting: ClassVar[str] = ""
    beside: ClassVar[tuple[str, ...]] = ("lm_head.weight", "mtp.")  # see `models/heads/mtp.py`

    def __init__(self, config: ModelConfig, layers: str = "model.layers") -> None:
        self.config = config
        self.layers = layers

    @classmethod
    def but(cls, **changed: object) -> Mapping[str, object]:
        """Returns its defaults with others, or further ones, for those of a subclass."""
        return {**cls.defaults, **changed}

    @classmethod
    def inner_name(cls, name: str) -> str:
        """Returns a tensor's name in the description, from that in a file that writes no text.

        Published embedding models were saved with an output projection, or without it and then
        with shorter names; rerankers have a score.
        """
        return name if name.startswith(("model.", "lm_head.", "score.")) else f"model.{name}"

    @classmethod
    def of(cls, fields: ConfigFields) -> type[Llama]:
        """Returns what describes a checkpoint of its `model_type`, which another may have taken."""
        return cls

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config, defaults included, under the names that `ModelConfig` reads."""
        return fields

    @classmethod
    def of_head(cls, config: ModelConfig) -> ModelConfig:
        """Returns the config of the only layer of a draft head that a checkpoint holds."""
        return replace(config, num_layers=1, recurrent=frozenset(), windows=(None,))

    def decoder(self) -> Decoder:
        """Returns the model's description.

        Raises:
            UnsupportedModelError: A field needs something that is not implemented.
            CheckpointError: A field is missing or has an invalid value.
        """
        layers = range(self.config.num_layers)
        return self.of_layers((self.mixer(index), self.feed_forward(index)) for index in layers)

    def of_layers(self, layers: Iterable[tuple[Sublayer, ...]]) -> Decoder:
        """Returns the description of a model with these layers."""
        config = self.config
        embedding = "model.embed_tokens.weight"
        head = embedding if config.tied else "lm_head.weight"
        return Decoder(
            embedding=embedding,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            layers=tuple(layers),
            norm=self.norm("model.norm", config.hidden_size),
            lm_head=Linear(head, config.hidden_size, config.vocab_size),
            tied=config.tied,
            ropes=self.ropes(),
            context_length=config.context_length,
        )

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights by the names of the description, from those of the files."""
        return tensors

    def ropes(self) -> dict[str, Rope]:
        """Returns the rotation tables by the names that attentions refer to."""
        return {DEFAULT_ROPE: rope_from_config(self.config.fields, self.config.head_dim)}

    def mixer(self, index: int) -> Sublayer:
        """Returns what a layer reads earlier positions with: its attention, in most families."""
        if self.config.recurrent:
            raise self.config.fields.unsupported(
                "layer_types", f"{self.config.model_type} models have attention in every layer"
            )
        return self.attention(index)

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        config = self.config
        name = f"{self.layers}.{index}"
        hidden = config.hidden_size
        inner = config.heads * config.head_dim
        kv_inner = config.kv_heads * config.head_dim
        q_norm, k_norm = self.head_norms(f"{name}.self_attn")
        return Attention(
            norm=self._named(name, self.norms_before[0], hidden),
            q=self.linear(f"{name}.self_attn.q_proj", hidden, inner),
            k=self.linear(f"{name}.self_attn.k_proj", hidden, kv_inner),
            v=self.linear(f"{name}.self_attn.v_proj", hidden, kv_inner),
            o=self.linear(f"{name}.self_attn.o_proj", inner, hidden),
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            q_norm=q_norm,
            k_norm=k_norm,
            post_norm=self._named(name, self.norms_behind[0], hidden),
            mask=self.mask(index),
        )

    def mask(self, index: int) -> str:
        """Returns the name of the mask of a layer, which says what its rows see."""
        config = self.config
        window = config.windows[index]
        if window is not None and window < config.context_length:
            return f"window:{window}"
        return ALL if config.fields.get("is_causal") is False else CAUSAL

    def feed_forward(self, index: int) -> FeedForward:
        """Returns what follows the attention of a layer: its MLP, or a mixture of experts."""
        return self.mlp(index)

    def mlp(self, index: int) -> Mlp:
        """Returns the MLP of a layer."""
        config = self.config
        name = f"{self.layers}.{index}"
        own = f"{name}.{self.mlp_name}"
        hidden = config.hidden_size
        inner = config.intermediate_size
        return Mlp(
            norm=self._named(name, self.norms_before[1], hidden),
            gate=self.linear(f"{own}.gate_proj", hidden, inner),
            up=self.linear(f"{own}.up_proj", hidden, inner),
            down=self.linear(f"{own}.down_proj", inner, hidden),
            activation=activation_of(config.fields, self.activation_field),
            post_norm=self._named(name, self.norms_behind[1], hidden),
        )

    def head_norms(self, name: str) -> tuple[Norm | None, Norm | None]:
        """Returns the norms of queries and keys of the attention of that name."""
        config, (q_norm, k_norm) = self.config, self.norms_of_heads
        counts = (config.heads, config.kv_heads) if self.heads_together else (1, 1)
        sizes = [config.head_dim * count for count in counts]
        return self._named(name, q_norm, sizes[0]), self._named(name, k_norm, sizes[1])

    def _named(self, place: str, name: str, size: int) -> Norm | None:
        return self.norm(f"{place}.{name}", size) if name else None

    def norm(self, name: str, size: int) -> Norm:
        """Returns the normalization of that name."""
        return Norm(f"{name}.weight", size, self.config.norm_eps)

    def linear(self, name: str, in_features: int, out_features: int) -> Linear:
        """Returns the projection of that name, with a bias if the architecture has one."""
        bias = f"{name}.bias" if self.has_bias(name) else None
        return Linear(f"{name}.weight", in_features, out_features, bias)

    def has_bias(self, name: str) -> bool:
        """Returns whether the projection of that name has a bias."""
        of_mlp = f".{self.mlp_name}." in name
        asked = self.config.mlp_bias if of_mlp else self.config.attention_bias
        return asked and name.endswith(self.biased)


class Mistral(Llama):
    """Llama with other defaults, and a window if the config has one."""

    models = "Mistral and Ministral 8B, with or without sliding windows"
    defaults = Llama.but(
        max_position_embeddings=131072,
        num_key_value_heads=8,
        sliding_window=4096,
    )
