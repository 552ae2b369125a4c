"""Emits a draft head as a native graph, which has the inputs of a model's and two more.

The first rows of a call read features of the target, `target_features` [T, F]. The others read what
the head gave for the rows before them, `own_features` [S - T, hidden], and it gives this again as
`features` [S, hidden].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from edgespec.bundle import FEATURES, LOGITS, OWN_FEATURES, TARGET_FEATURES, Block, Native
from edgespec.export.formats.checked import read_finite
from edgespec.export.heads.borrowing import borrow_embedding, borrow_norm, borrow_projection
from edgespec.export.native.graph import NativeGraphBuilder, write_ids
from edgespec.export.native.layers import FLOAT
from edgespec.export.native.weights import TileWeights
from edgespec.models.heads.checkpoint import HeadCheckpoint
from edgespec.models.heads.head import Fusion, Head, HeadLayer


def write_native_head(
    folder: Path, name: str, checkpoint: HeadCheckpoint, weights: TileWeights, target: str
) -> Native:
    """Writes a head's native graph.

    Args:
        folder: folder of the bundle.
        name: name of the head's role.
        checkpoint: the head.
        weights: writes its matrices.
        target: the target's graph, from whose weights it reads what it has not itself.

    Raises:
        CheckpointError: if a matrix contains infinity or NaN.
        UnsupportedModelError: if a part of the head has no native operator.
    """
    native = NativeGraphBuilder(weights, name)
    head = checkpoint.head
    assert isinstance(head, Head), "the caller says so"
    source = onnx.load(folder / target, load_external_data=False)
    ids = native.inputs()
    g = native.graph
    own = g.input(OWN_FEATURES, FLOAT, ["S - T", head.hidden_size])
    if head.fusion.fc is None:
        rows = borrow_norm(source, g, g.input(TARGET_FEATURES, FLOAT, ["T", head.hidden_size]))
    else:
        rows = fused(native, head.fusion)
    hidden = g.op("Concat", rows, own, axis=0)
    if head.embedding is None:
        token = borrow_embedding(source, g)
    else:
        token = native.embedding(ids, head.embedding)
    stream = _lowered_layer(native, head.layer, token, hidden)
    for number, sublayer in enumerate(head.further, 2):  # two of a layer
        stream = native.added(stream, number // 2, sublayer)
    output = native.norm(stream, head.norm)
    chosen = g.op("Gather", output, "logit_rows", axis=0)
    if head.lm_head is None:
        logits = borrow_projection(source, g, chosen)
    else:
        logits = native.linear(chosen, head.lm_head)
    outputs = head.vocab_size if head.lm_head is None else head.lm_head.out_features
    g.output(LOGITS, logits, FLOAT, ["R", outputs])
    g.output(FEATURES, output if head.norm_output else stream, FLOAT, ["S", head.hidden_size])
    return native.save(folder, write_ids(folder, name, checkpoint.ids))


def write_masks(folder: Path, name: str, checkpoint: HeadCheckpoint) -> Block | None:
    """Writes what masks read in place of features; returns the record of the block, if any.

    Raises:
        CheckpointError: if a number is not finite.
    """
    head = checkpoint.head
    if not isinstance(head, Head) or head.masks is None:
        return None
    file = f"{name}.masks.npy"
    features = read_finite(checkpoint.tensors, head.masks.features, 0, 1)
    np.save(folder / file, features.reshape(-1), allow_pickle=False)
    return Block(head.masks.rows, from_anchor=True, features=file)


def fused(native: NativeGraphBuilder, fusion: Fusion) -> str:
    """Emits the rows that the target's features become by a fusion's matrix, [T, hidden]."""
    g = native.graph
    fc = fusion.fc
    assert fc is not None, "the caller says so"
    rows = native.norm(g.input(TARGET_FEATURES, FLOAT, ["T", fc.in_features]), fusion.norm)
    if fusion.tap_norms:
        rows = g.op("Concat", *_normed_taps(native, rows, fusion), axis=-1)
    return native.norm(native.linear(rows, fc), fusion.output_norm)


def _normed_taps(native: NativeGraphBuilder, rows: str, fusion: Fusion) -> list[str]:
    norms = fusion.tap_norms
    count = len(fusion.tap_norms)
    parts = [rows]
    if count > 1:
        parts = native.graph.multi_op("Split", rows, outputs=count, axis=-1, num_outputs=count)
    return [native.norm(part, norm) for part, norm in zip(parts, norms, strict=True)]


def _lowered_layer(native: NativeGraphBuilder, layer: HeadLayer, token: str, hidden: str) -> str:
    """Emits the decoder layer over embeddings of tokens and hidden rows, both [S, hidden]."""
    g = native.graph
    token = native.norm(token, layer.token_norm)
    normed = native.norm(hidden, layer.hidden_norm)
    mixed = g.op("Concat", token, normed, axis=-1)
    stream = normed if layer.norm_before_residual else hidden
    if layer.entry is not None:
        mixed = stream = native.linear(mixed, layer.entry)
    elif layer.gate is not None:
        share = g.op("Sigmoid", native.linear(mixed, layer.gate))
        # share * hidden + (1 - share) * token
        mixed = g.op("Add", token, g.op("Mul", share, g.op("Sub", normed, token)))
    x = native.norm(mixed, layer.attention.norm)
    stream = native.lowered(x, 0, layer.attention, stream)
    return native.added(stream, 0, layer.mlp)
