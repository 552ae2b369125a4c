"""What each layer reads of a row besides the residual stream: an input by the row's token."""

from __future__ import annotations

import numpy as np

from edgespec.export.components.mlp import gated
from edgespec.export.components.stage import StageBuilder
from edgespec.models import Injection
from edgespec.models.layers import LayerInputs


def emit_layer_inputs(stage: StageBuilder, layer_inputs: LayerInputs, ids: str, rows: str) -> None:
    """Emits the inputs of all layers into the `layer_inputs` of a model's first stage.

    Args:
        stage: receives the nodes.
        layer_inputs: description of the inputs.
        ids: [S] int64, the rows' tokens.
        rows: [S, hidden], their embedding.
    """
    g, vocabulary, size = stage.graph, stage.formats.vocabulary, layer_inputs.norm.size
    found = vocabulary.embedding(g, stage.weights, ids, layer_inputs.table)
    found = g.op("Mul", found, g.constant(layer_inputs.scale, np.float32))
    # Like the table, the projection is a part of an embedding: whatever it loses, all layers read.
    projected = vocabulary.linear(g, stage.weights, rows, layer_inputs.projection)
    projected = g.op("Reshape", projected, g.ints(0, -1, size))
    projected = stage.norm(projected, layer_inputs.norm)
    projected = g.op("Reshape", projected, g.ints(0, -1))
    split_layer_inputs(stage, g.op("Add", projected, found), layer_inputs)


def split_layer_inputs(stage: StageBuilder, both: str, layer_inputs: LayerInputs) -> None:
    """Splits the inputs of all layers side by side, [S, layers * size], into `layer_inputs`."""
    count = layer_inputs.shape[1] // layer_inputs.norm.size
    if count == 1:
        stage.layer_inputs = [both]
        return
    stage.layer_inputs = stage.graph.multi_op(
        "Split", both, outputs=count, axis=1, num_outputs=count
    )


def lower_injection(stage: StageBuilder, x: str, own: str, layer: Injection) -> str:
    """Emits what a layer's own input [S, size] adds to the stream x; both are [S, hidden]."""
    gate = stage.linear(x, layer.gate)
    return stage.linear(gated(stage.graph, gate, own, layer.activation), layer.out)
