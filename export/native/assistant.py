"""Emits an assistant, a draft head that reads keys and values of its target, as a native graph.

It has the inputs of a draft head's graph, see `head.py`, and its attention reads the target's pools
and writes nothing: a row's `write` and the slots of its sequence in `context` are what it sees.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from edgespec.bundle import FEATURES, LOGITS, OWN_FEATURES, TARGET_FEATURES, Native
from edgespec.export.graph_builder import CLUSTERS, NATIVE
from edgespec.export.heads.borrowing import borrow_embedding, borrow_norm
from edgespec.export.native.graph import NativeGraphBuilder, write_ids
from edgespec.export.native.layers import FLOAT
from edgespec.export.native.weights import TileWeights
from edgespec.models.heads.assistant import Assistant, Clusters
from edgespec.models.heads.checkpoint import HeadCheckpoint


def write_native_assistant(
    folder: Path, name: str, checkpoint: HeadCheckpoint, weights: TileWeights, target: str
) -> Native:
    """Writes an assistant's native graph; see `write_native_head`."""
    native = NativeGraphBuilder(weights, name)
    head = checkpoint.head
    assert isinstance(head, Assistant), "the caller says so"
    source = onnx.load(folder / target, load_external_data=False)
    native.inputs()
    g = native.graph
    width = head.after.out_features
    vocabulary = head.decoder.vocab_size
    of_target = borrow_norm(source, g, g.input(TARGET_FEATURES, FLOAT, ["T", width]))
    above = g.op("Concat", of_target, g.input(OWN_FEATURES, FLOAT, ["S - T", width]), axis=0)
    both = g.op("Concat", borrow_embedding(source, g), above, axis=-1)
    hidden = native.layers(head.decoder, native.linear(both, head.before))
    output = native.norm(hidden, head.decoder.norm)
    chosen = g.op("Gather", output, "logit_rows", axis=0)
    if head.clusters is None:
        logits = native.linear(chosen, head.decoder.lm_head)
    else:
        logits = _by_clusters(native, chosen, head, head.clusters)
    g.output(LOGITS, logits, FLOAT, ["R", vocabulary])
    g.output(FEATURES, native.linear(output, head.after), FLOAT, ["S", width])
    return replace(native.save(folder, write_ids(folder, name, checkpoint.ids)), pools=())


def _by_clusters(native: NativeGraphBuilder, x: str, head: Assistant, clusters: Clusters) -> str:
    """Emits logits, [R, V]: of tokens of clusters that a row does not choose, the least minus 1."""
    g = native.graph
    vocabulary = head.decoder.vocab_size
    count = clusters.centroids.out_features
    top = g.ints(clusters.chosen)
    size = vocabulary // count
    likely = native.linear(x, clusters.centroids, exact=True)
    _, chosen = g.multi_op("TopK", likely, top, outputs=2, axis=-1)
    matrix = native.weights.matrix(head.decoder.lm_head.weight)
    scores = g.op(
        "ExpertLinear",
        x,
        chosen,
        "",
        "",
        native.tiles(matrix),
        domain=NATIVE,
        experts=count,
        formats=matrix.format,
        columns=[size],
    )
    scores = g.rename(scores, CLUSTERS)
    flat = g.ints(-1, clusters.chosen * size)
    scores = g.op("Reshape", scores, flat)
    ordering = g.constant(clusters.ordering.reshape(count, size), np.int64)
    tokens = g.op("Reshape", g.op("Gather", ordering, chosen, axis=0), flat)
    least = g.op("ReduceMin", scores, g.ints(1), keepdims=1)
    least = g.op("Sub", least, g.constant(1, np.float32))
    shape = g.op("Concat", g.op("Shape", "logit_rows"), g.ints(vocabulary), axis=0)
    return g.op("ScatterElements", g.op("Expand", least, shape), tokens, scores, axis=1)
