"""Layers' own inputs of each row, by its token, as Gemma 4 has them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.layers.decoder import LayerInputs
from edgespec.models.layers.elements import Linear, Norm
from edgespec.models.layers.sublayers import Injection

if TYPE_CHECKING:
    from edgespec.models.config import ModelConfig
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Activation
    from edgespec.models.layers.sublayers import Sublayer

SIZE = "hidden_size_per_layer_input"
"""The field with the size of a layer's input of a row; 0 or null: layers have none."""

_ROWS = "vocab_size_per_layer_input"


def with_layer_inputs(
    decoder: Decoder, config: ModelConfig, activation: Activation, names: tuple[str, str] = ("", "")
) -> Decoder:
    """Returns a decoder of which each layer ends with an `Injection`.

    Args:
        decoder: The decoder without them.
        config: Its config, which has no rows if there is no table by token.
        activation: Activation of their gates.
        names: What is put before names of what all layers share, and of what each has.

    Raises:
        CheckpointError: A field is missing or has an invalid value.
    """
    hidden = config.hidden_size
    size = config.fields.integer(SIZE)
    table = "" if config.fields.get(_ROWS) is None else "model.embed_tokens_per_layer.weight"
    rows = config.fields.integer(_ROWS, decoder.vocab_size)
    width = config.num_layers * size
    # Table and projection are multiplied by sqrt(1 / 2), if there is a table, and the projection
    # before its norm by sqrt(1 / hidden), which is the same as a larger epsilon.
    norm = Norm(
        f"model.{names[0]}per_layer_projection_norm.weight",
        size,
        config.norm_eps * hidden,
        factor=0.5**0.5 if table else 1.0,
    )
    inputs = LayerInputs(
        table=table,
        shape=(rows, width),
        scale=(size / 2) ** 0.5,
        projection=Linear(f"model.{names[0]}per_layer_model_projection.weight", hidden, width),
        norm=norm,
    )

    def injected(index: int, layer: tuple[Sublayer, ...]) -> tuple[Sublayer, ...]:
        name = f"model.layers.{index}.{names[1]}"
        injection = Injection(
            gate=Linear(f"{name}per_layer_input_gate.weight", hidden, size),
            out=Linear(f"{name}per_layer_projection.weight", size, hidden),
            activation=activation,
            post_norm=Norm(f"{name}post_per_layer_input_norm.weight", hidden, config.norm_eps),
        )
        return (*layer, injection)

    layers = tuple(injected(index, layer) for index, layer in enumerate(decoder.layers))
    return replace(decoder, layers=layers, layer_inputs=inputs)
