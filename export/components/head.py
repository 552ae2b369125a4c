"""Builds the two graphs of a draft head: the fusion of features, and the layer that drafts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from edgespec.export.components.mlp import lower_mlp
from edgespec.export.components.outputs import emit_candidates, emit_new_kv
from edgespec.export.components.self_attention import lower_attention
from edgespec.export.components.stage import FLOAT, INT64, StageBuilder
from edgespec.models.heads.head import Fusion, Head, HeadLayer

Embed = Callable[[str], str]
"""Emits the lookup of embedding rows: ids [S] int64 give [S, hidden] float32."""


def lower_fusion(stage: StageBuilder, head: Head) -> None:
    """Emits the fusion: features `hidden` [S, taps * size] give `next_hidden` [S, hidden]."""
    width = head.fusion.fc.in_features
    rows = _normed(stage, stage.input("hidden", FLOAT, "S", width), head.fusion)
    fused = stage.linear(rows, head.fusion.fc)
    stage.output("next_hidden", fused, FLOAT, "S", head.hidden_size)


def lower_layer(stage: StageBuilder, head: Head, embed: Embed, ids: npt.NDArray[np.int64]) -> None:
    """Emits the decoder layer and the output projection.

    Besides a draft's usual results it gives `next_hidden` [S, hidden], which the next level of a
    draft reads as `hidden`.

    Args:
        stage: receives the nodes, inputs and outputs.
        head: the head.
        embed: emits the embedding.
        ids: the target's id of each output of the projection.
    """
    g, layer = stage.graph, head.layer
    token = embed(stage.input("input_ids", INT64, "S"))
    hidden = stage.input("hidden", FLOAT, "S", head.hidden_size)
    token, normed = stage.norm(token, layer.token_norm), stage.norm(hidden, layer.hidden_norm)
    stream = normed if layer.norm_before_residual else hidden
    mixed = _mixed(stage, token, normed, layer)
    stream = g.op("Add", stream, lower_attention(stage, mixed, 0, layer.attention))
    mlp = lower_mlp(stage, stage.norm(stream, layer.mlp.norm), layer.mlp)
    stream = g.op("Add", stream, mlp)
    output = stage.norm(stream, head.norm)
    # The expensive output projection computes only the rows whose candidates are needed.
    chosen = g.op("Gather", output, stage.input("logit_rows", INT64, "R"), axis=0)
    logits = stage.formats.vocabulary.linear(g, stage.weights, chosen, head.lm_head)
    emit_candidates(stage, logits, head.lm_head.out_features, ids)
    following = output if head.norm_output else stream
    stage.output("next_hidden", following, FLOAT, "S", head.hidden_size)
    emit_new_kv(stage)


def _normed(stage: StageBuilder, features: str, fusion: Fusion) -> str:
    features = stage.norm(features, fusion.norm)
    if not fusion.tap_norms:
        return features
    g, count = stage.graph, len(fusion.tap_norms)
    parts = (
        g.multi_op("Split", features, outputs=count, axis=-1, num_outputs=count)
        if count > 1
        else [features]
    )
    normed = [stage.norm(part, norm) for part, norm in zip(parts, fusion.tap_norms, strict=True)]
    return g.op("Concat", *normed, axis=-1)


def _mixed(stage: StageBuilder, token: str, hidden: str, layer: HeadLayer) -> str:
    """Emits what attention reads of the normalized rows: both, or with a gate a mixture."""
    g = stage.graph
    both = g.op("Concat", token, hidden, axis=-1)
    if layer.gate is None:
        return both
    share = g.op("Sigmoid", stage.linear(both, layer.gate))
    # share * hidden + (1 - share) * token
    return g.op("Add", token, g.op("Mul", share, g.op("Sub", hidden, token)))
