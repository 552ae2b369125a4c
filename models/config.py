"""The numbers of a config.json, checked; what is not implemented is refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.models.rope import rope_from_config

if TYPE_CHECKING:
    from edgespec.models.fields import Fields
    from edgespec.models.rope import Rope

# Far beyond any model; describing one that has more takes minutes, or all memory.
_WIDEST, _DEEPEST = 2**20, 2**12


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's sizes and switches.

    Attributes:
        model_type: The architecture's name in transformers.
        vocab_size: Rows of the embedding.
        hidden_size: Size of the residual stream.
        intermediate_size: Inner size of the MLP.
        num_layers: Layers, each an attention and an MLP.
        heads: Query heads, a multiple of kv_heads.
        kv_heads: Key and value heads.
        head_dim: Size of a head, even; need not be hidden_size / heads.
        norm_eps: Epsilon of every RMS normalization.
        context_length: The most positions the model was made for.
        attention_bias: The config's `attention_bias`.
        mlp_bias: The config's `mlp_bias`.
        tied: Whether the head is the embedding.
        rope: Rotary position embedding.
        eos_ids: Ids that end a text, generation_config.json's before config.json's.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    attention_bias: bool
    mlp_bias: bool
    tied: bool
    rope: Rope
    eos_ids: tuple[int, ...]

    @classmethod
    def from_fields(cls, fields: Fields, generation: Fields) -> ModelConfig:
        """Check a config and take from it what a decoder needs.

        Args:
            fields: config.json with the defaults of its `model_type` filled in.
            generation: generation_config.json, empty if there is none.

        Raises:
            UnsupportedModelError: A field asks for something that is not implemented.
            CheckpointError: A field is missing or has an impossible value.
        """
        _refuse_unsupported(fields)
        hidden_size = fields.integer("hidden_size", most=_WIDEST)
        heads = fields.integer("num_attention_heads")
        kv_heads = fields.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise fields.invalid("num_key_value_heads", f"must divide num_attention_heads={heads}")
        head_dim = _head_dim(fields, hidden_size, heads)
        context_length = fields.integer("max_position_embeddings")
        if context_length < 2:
            raise fields.invalid(
                "max_position_embeddings", "must be 2 or more, for a prompt and text"
            )
        return cls(
            model_type=str(fields.get("model_type")),
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=fields.integer("num_hidden_layers", most=_DEEPEST),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=fields.number("rms_norm_eps"),
            context_length=context_length,
            attention_bias=fields.flag("attention_bias"),
            mlp_bias=fields.flag("mlp_bias"),
            tied=fields.flag("tie_word_embeddings"),
            rope=rope_from_config(fields, head_dim),
            eos_ids=_eos_ids(generation) or _eos_ids(fields),
        )


def _refuse_unsupported(fields: Fields) -> None:
    """Refuse what changes the computation in a way that the shared layers do not have."""
    if fields.get("hidden_act") not in ("silu", "swish"):  # two names of one function
        raise fields.unsupported("hidden_act", "only silu is")
    if fields.get("quantization_config") is not None:
        raise fields.group("quantization_config").unsupported(
            "quant_method", "use the original checkpoint in bf16, fp16 or fp32"
        )
    layer_types = fields.get("layer_types") or []
    if not isinstance(layer_types, list):
        raise fields.invalid("layer_types", "must be a list")
    for index, layer_type in enumerate(layer_types):
        if layer_type != "full_attention":
            raise fields.unsupported(
                "layer_types", f"layer {index} is {layer_type!r}, only full_attention is"
            )
    if _has_window(fields):
        context = fields.integer("max_position_embeddings")
        window = fields.integer("sliding_window", context)
        if window < context:
            raise fields.unsupported(
                "sliding_window",
                f"set max_position_embeddings, now {context}, to at most {window} "
                "to run the model within its window",
            )


def _has_window(fields: Fields) -> bool:
    """Qwen has a switch beside its window, and the first layer to have one; others mean it."""
    if fields.get("use_sliding_window") is None:
        return True
    first = fields.get("max_window_layers")
    reached = not isinstance(first, int) or first < fields.integer("num_hidden_layers")
    return fields.flag("use_sliding_window") and reached


def _head_dim(fields: Fields, hidden_size: int, heads: int) -> int:
    if fields.get("head_dim") is None and hidden_size % heads:
        raise fields.invalid("hidden_size", f"must be a multiple of num_attention_heads={heads}")
    head_dim = fields.integer("head_dim", hidden_size // heads, most=_WIDEST)
    if head_dim % 2:
        raise fields.invalid("head_dim", f"must be even for RoPE, not {head_dim}")
    return head_dim


def _eos_ids(fields: Fields) -> tuple[int, ...]:
    value = fields.get("eos_token_id")
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(id_, int) and not isinstance(id_, bool) and id_ >= 0 for id_ in ids):
        raise fields.invalid("eos_token_id", "must be a token id or a list of them")
    return tuple(ids)
