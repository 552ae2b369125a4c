"""Builds the graph of a stage: consecutive sublayers of a decoder as stateless ONNX operators.

A stage never appends to the cache. It reads the cache, attends to it and to its own new rows, and
returns the new keys and values. The caller gives the mask in `attention_bias`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgespec.bundle import LAST_HIDDEN, LOGITS
from edgespec.export.components.attention import limited
from edgespec.export.components.border import Border
from edgespec.export.components.graph import GraphBuilder
from edgespec.export.components.layer_inputs import emit_layer_inputs, lower_injection
from edgespec.export.components.mlp import lower_mlp
from edgespec.export.components.moe import lower_moe
from edgespec.export.components.outputs import emit_candidates, emit_new_kv
from edgespec.export.components.recurrent import lower_convolution, lower_delta
from edgespec.export.components.self_attention import lower_attention
from edgespec.export.components.stage import FLOAT, INT64, StageBuilder
from edgespec.export.formats.matrices import vector
from edgespec.models import (
    Attention,
    Decoder,
    GatedDelta,
    Injection,
    MlpAndMoe,
    Moe,
    ShortConvolution,
    Sublayer,
)


def entering(layer: int) -> str:
    """Returns the name of the hidden rows that enter a layer, or after the last one the head."""
    return f"entering.{layer}"


@dataclass(frozen=True)
class Span:
    """The sublayers of a stage, from `start` up to but not including `stop`; see `bundle.Stage`."""

    start: int
    stop: int


def lower(stage: StageBuilder, decoder: Decoder, span: Span, gated: bool = False) -> None:
    """Emits consecutive sublayers of a decoder into a stage.

    Args:
        stage: receives the nodes, inputs and outputs.
        decoder: the model.
        span: the sublayers to emit.
        gated: whether to multiply each sublayer's output by its entry of the input `gates`, so
            that sublayers can be left out for a trial.
    """
    g = stage.graph
    border = Border(stage, decoder)
    hidden = _entry(stage, decoder) if span.start == 0 else border.enter(span.start, span.stop)
    gates = stage.input("gates", FLOAT, len(decoder.sublayers)) if gated else None
    layer_of = [n for n, layer in enumerate(decoder.layers) for _ in layer] + [len(decoder.layers)]
    for number in range(span.start, min(span.stop, len(decoder.sublayers))):
        sublayer = decoder.sublayers[number]
        update = _contribution(stage, hidden, layer_of[number], sublayer)
        if gates is not None:
            gate = g.op("Slice", gates, g.ints(number), g.ints(number + 1), g.ints(0))
            update = g.op("Mul", update, gate)
        hidden = g.op("Add", hidden, update)
        if layer_of[number + 1] > layer_of[number]:
            if decoder.layer_factors:
                factor = vector(g, stage.weights, decoder.layer_factors[layer_of[number]])
                hidden = g.op("Mul", hidden, factor if gates is None else _gated(g, factor, gate))
            hidden = g.rename(hidden, entering(layer_of[number + 1]))
    if span.stop > len(decoder.sublayers):
        _emit_head(stage, hidden, decoder)
    else:
        border.leave(hidden)
    emit_new_kv(stage)


def _gated(graph: GraphBuilder, factor: str, gate: str) -> str:
    """Emits the factor of a layer whose last sublayer is multiplied by a gate: at 0 it is 1."""
    one = graph.constant(1, np.float32)
    return graph.op("Add", graph.op("Mul", graph.op("Sub", factor, one), gate), one)


def _entry(stage: StageBuilder, decoder: Decoder) -> str:
    """Emits the first stage's entry: embedding rows [S, hidden], and the layers' own inputs."""
    ids = stage.input("input_ids", INT64, "S")
    embed = stage.formats.vocabulary.embedding
    rows = embed(stage.graph, stage.weights, ids, decoder.embedding)
    if decoder.embedding_scale != 1:
        scale = stage.graph.constant(decoder.embedding_scale, np.float32)
        rows = stage.graph.op("Mul", rows, scale)
    rows = stage.graph.rename(rows, entering(0))
    if decoder.layer_inputs is not None:
        emit_layer_inputs(stage, decoder.layer_inputs, ids, rows)
    return rows


def _contribution(stage: StageBuilder, hidden: str, index: int, sublayer: Sublayer) -> str:
    """Emits a sublayer of layer `index`; returns what it adds to the stream, [S, hidden]."""
    x = stage.norm(hidden, sublayer.norm)
    if isinstance(sublayer, Moe):
        return stage.norm(lower_moe(stage, x, hidden, sublayer), sublayer.post_norm)
    if isinstance(sublayer, MlpAndMoe):
        both = (_contribution(stage, x, index, part) for part in (sublayer.mlp, sublayer.moe))
        update = stage.graph.op("Add", *both)
    elif isinstance(sublayer, Attention):
        update = lower_attention(stage, x, index, sublayer)
    elif isinstance(sublayer, ShortConvolution):
        update = lower_convolution(stage, x, index, sublayer)
    elif isinstance(sublayer, GatedDelta):
        update = lower_delta(stage, x, index, sublayer)
    elif isinstance(sublayer, Injection):
        update = lower_injection(stage, x, stage.layer_inputs[index], sublayer)
    else:
        update = lower_mlp(stage, x, sublayer)
    update = stage.norm(update, sublayer.post_norm)
    if sublayer.output_factor != 1:
        factor = stage.graph.constant(sublayer.output_factor, np.float32)
        update = stage.graph.op("Mul", update, factor)
    return update


def _emit_head(stage: StageBuilder, hidden: str, decoder: Decoder) -> None:
    # The expensive output projection computes only the rows whose logits are needed.
    chosen = stage.graph.op("Gather", hidden, stage.input("logit_rows", INT64, "R"), axis=0)
    normed = stage.norm(chosen, decoder.norm)
    if decoder.embeds:
        stage.output(LAST_HIDDEN, normed, FLOAT, "R", decoder.hidden_size)
        return
    head = stage.formats.vocabulary.linear
    logits = head(stage.graph, stage.weights, normed, decoder.lm_head)
    if decoder.logit_softcap is not None:
        limit = stage.graph.constant(decoder.logit_softcap, np.float32)
        divided = stage.graph.op("Div", logits, limit)
        logits = limited(stage.graph, divided, decoder.logit_softcap)
    if stage.formats.candidates is not None:
        emit_candidates(stage, logits, decoder.lm_head.out_features, stage.formats.candidates)
    else:
        stage.output(LOGITS, logits, FLOAT, "R", decoder.vocab_size)
