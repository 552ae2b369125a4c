"""Reads and checks config.json; values that are not implemented are errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.elements import Activation, PlainActivation

T = TypeVar("T")

CLASSIFIER = "ForSequenceClassification"
"""What names of classes end with that score texts, or tell classes of them."""

# Limits far beyond any model: describing a larger one would take minutes or all memory.
_WIDEST = 2**20
_DEEPEST = 2**12

_GELUS: Mapping[str, Literal["gelu", "gelu_tanh"]] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
    **_GELUS,
}
_PLAIN_ACTIVATIONS: Mapping[str, PlainActivation] = {"relu2": "relu2", **_GELUS}
# Fields with which rows see those behind them, where they usually do not, and their values then.
# "vision" is of rows of pictures, in families that know it.
_BOTH_WAYS: Mapping[str, tuple[object, ...]] = {
    "is_causal": (False,),
    "use_bidirectional_attention": (True, "all", "vision"),
}
_SLIDING = "sliding_attention"
# The last is what Granite 4 calls the first.
_LAYER_TYPES = ("full_attention", _SLIDING, "attention")
_RECURRENT_TYPES = ("conv", "linear_attention", "mamba")


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's sizes and options.

    Attributes:
        model_type: The architecture's name in transformers.
        vocab_size: Number of rows of the embedding.
        hidden_size: Size of the residual stream.
        intermediate_size: Inner size of the MLP.
        num_layers: Number of layers.
        heads: Number of query heads, a multiple of kv_heads.
        kv_heads: Number of key and value heads.
        head_dim: Size of a head, even; may differ from hidden_size / heads.
        norm_eps: Epsilon of every normalization.
        context_length: Maximum number of positions that the model was trained for.
        attention_bias: The config's `attention_bias`.
        mlp_bias: The config's `mlp_bias`.
        tied: Whether output projection and embedding are one tensor.
        recurrent: Layers without attention that carry a state.
        windows: For each layer, the number of positions that its attention sees, including the
            current one; None: all.
        eos_ids: Ids that end a text, from generation_config.json or else from config.json.
        mask_token: Id of the token that stands for a token still to come, from `pard_token`; None
            if the model was not trained to predict several tokens in one pass (PARD: An et al.,
            2025).
        fields: config.json with defaults, for fields that only some architectures have.
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
    recurrent: frozenset[int]
    windows: tuple[int | None, ...]
    eos_ids: tuple[int, ...]
    mask_token: int | None
    fields: ConfigFields

    @classmethod
    def from_fields(cls, fields: ConfigFields, generation: ConfigFields) -> ModelConfig:
        """Checks a config and reads the values that a decoder needs.

        Args:
            fields: config.json with the defaults of its `model_type` filled in.
            generation: generation_config.json, empty if there is none.

        Raises:
            UnsupportedModelError: A field needs something that is not implemented.
            CheckpointError: A field is missing or has an invalid value.
        """
        hidden_size = fields.integer("hidden_size", most=_WIDEST)
        heads = fields.integer("num_attention_heads")
        kv_heads = fields.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise fields.invalid("num_key_value_heads", f"must divide num_attention_heads={heads}")
        head_dim = _head_dim(fields, hidden_size, heads)
        context_length = fields.integer("max_position_embeddings")
        if context_length < 2:
            raise fields.invalid(
                "max_position_embeddings", "must be 2 or more, for a prompt and a generated token"
            )
        layers = fields.integer("num_hidden_layers", most=_DEEPEST)
        vocab_size = fields.integer("vocab_size")
        return cls(
            model_type=str(fields.get("model_type")),
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=_norm_eps(fields),
            context_length=context_length,
            attention_bias=fields.flag("attention_bias"),
            mlp_bias=fields.flag("mlp_bias"),
            tied=fields.flag("tie_word_embeddings"),
            recurrent=_recurrent(fields),
            windows=_windows(fields, layers),
            eos_ids=eos_ids(generation) or eos_ids(fields),
            mask_token=(
                None if fields.get("pard_token") is None else fields.token("pard_token", vocab_size)
            ),
            fields=fields,
        )


def class_of(fields: ConfigFields) -> str:
    """Returns the name of transformers' class of a checkpoint; empty if its config has none."""
    named = fields.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def both_ways(fields: ConfigFields) -> str:
    """Returns the name of the field with which rows see those behind them; empty: none says so."""
    return next((name for name, values in _BOTH_WAYS.items() if fields.get(name) in values), "")


def activation_of(fields: ConfigFields, name: str) -> Activation:
    """Returns the activation of a gate that a field names.

    Raises:
        UnsupportedModelError: The activation is not implemented.
    """
    return _one_of(_ACTIVATIONS, fields, name)


def plain_activation_of(fields: ConfigFields, name: str) -> PlainActivation:
    """Returns the activation of an MLP without a gate that a field names.

    Raises:
        UnsupportedModelError: The activation is not implemented.
    """
    return _one_of(_PLAIN_ACTIVATIONS, fields, name)


def _one_of(known: Mapping[str, T], fields: ConfigFields, name: str) -> T:
    found = known.get(str(fields.get(name)))
    if found is None:
        raise fields.unsupported(name, f"use one of {', '.join(known)}")
    return found


def check_windows_listed(fields: ConfigFields) -> None:
    """Checks that a config with windows lists the layers that have one.

    Raises:
        UnsupportedModelError: It does not.
    """
    if fields.flag("use_sliding_window") and fields.get("layer_types") is None:
        raise fields.unsupported(
            "use_sliding_window", "add layer_types, which says the layers that have a window"
        )


def _windows(fields: ConfigFields, layers: int) -> tuple[int | None, ...]:
    """Returns the number of positions that each layer sees; None if it has no window."""
    window = fields.integer("sliding_window", fields.integer("max_position_embeddings"))
    types = fields.get("layer_types")
    if types is None:
        sliding = _has_window(fields, layers)
    else:
        if not isinstance(types, list) or len(types) != layers:
            raise fields.invalid("layer_types", f"must be a list of {layers} layers")
        for index, each in enumerate(types):
            if each not in (*_LAYER_TYPES, *_RECURRENT_TYPES):
                raise fields.unsupported(
                    "layer_types", f"layer {index} is {each!r}, use {' or '.join(_LAYER_TYPES[:2])}"
                )
        sliding = [each == _SLIDING for each in types]
    return tuple(window if each else None for each in sliding)


def _recurrent(fields: ConfigFields) -> frozenset[int]:
    types = fields.get("layer_types")
    named = enumerate(types) if isinstance(types, list) else ()
    return frozenset(index for index, each in named if each in _RECURRENT_TYPES)


def _has_window(fields: ConfigFields, layers: int) -> list[bool]:
    """Returns which layers have a window, if the config has no list of layer types.

    Qwen has a switch and a first layer, Gemma a pattern, and Mistral a window in all layers.
    """
    if fields.get("use_sliding_window") is not None:
        first = fields.get("max_window_layers")
        start = first if isinstance(first, int) else 0
        return [fields.flag("use_sliding_window") and index >= start for index in range(layers)]
    if fields.get("sliding_window_pattern") is not None:
        pattern = fields.integer("sliding_window_pattern")
        return [(index + 1) % pattern > 0 for index in range(layers)]
    return [fields.get("sliding_window") is not None] * layers


def _norm_eps(fields: ConfigFields) -> float:
    """Returns the epsilon of norms, which models that also subtract the mean name otherwise."""
    layer = "layer_norm_eps"
    return fields.number(layer if fields.get(layer) is not None else "rms_norm_eps")


def _head_dim(fields: ConfigFields, hidden_size: int, heads: int) -> int:
    if fields.get("head_dim") is None and hidden_size % heads:
        raise fields.invalid("hidden_size", f"must be a multiple of num_attention_heads={heads}")
    head_dim = fields.integer("head_dim", hidden_size // heads, most=_WIDEST)
    if head_dim % 2:
        raise fields.invalid("head_dim", f"must be even for RoPE, not {head_dim}")
    return head_dim


def eos_ids(fields: ConfigFields) -> tuple[int, ...]:
    """Returns the ids that end a text; empty if the file has none.

    Raises:
        CheckpointError: The field is neither an id nor a list of them.
    """
    value = fields.get("eos_token_id")
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(id_, int) and not isinstance(id_, bool) and id_ >= 0 for id_ in ids):
        raise fields.invalid("eos_token_id", "must be a token id or a list of them")
    return tuple(ids)
