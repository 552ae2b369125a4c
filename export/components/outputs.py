"""The outputs that a model's last stage and its attentions give to the runtime."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgespec.bundle.caches import new_kv_output
from edgespec.export.components.stage import FLOAT, INT64, StageBuilder

CANDIDATES = 128  # likeliest tokens that a draft returns; sampling may choose an unlikely one


def emit_candidates(
    stage: StageBuilder, logits: str, width: int, ids: npt.NDArray[np.int64]
) -> None:
    """Emits the likeliest tokens and the normalizer, so that [R, width] logits stay in the engine.

    Args:
        stage: receives the nodes and outputs.
        logits: [R, width] logits, of which the first ones belong to the `ids` in their order.
        width: number of logits of a row.
        ids: the tokens to pick from.
    """
    g, size = stage.graph, len(ids)
    if size < width:
        logits = g.op("Slice", logits, g.ints(0), g.ints(size), g.ints(1))
    count = min(CANDIDATES, size)
    top, columns = g.multi_op("TopK", logits, g.ints(count), outputs=2, axis=-1, sorted=1)
    if np.array_equal(ids, np.arange(size)):
        chosen = columns
    else:
        # WebGPU gathers int32, but not int64.
        table = g.constant(ids, np.int32)
        chosen = g.op("Cast", g.op("Gather", table, columns, axis=0), to=INT64)
    peak = g.op("Slice", top, g.ints(0), g.ints(1), g.ints(1))
    total = g.op("ReduceSum", g.op("Exp", g.op("Sub", logits, peak)), g.ints(1), keepdims=1)
    normalizer = g.op("Squeeze", g.op("Add", g.op("Log", total), peak), g.ints(1))
    stage.output("top_ids", chosen, INT64, "R", count)
    stage.output("top_logits", top, FLOAT, "R", count)
    stage.output("logsumexp", normalizer, FLOAT, "R")


def emit_new_kv(stage: StageBuilder) -> None:
    """Emits the new rows of all attentions of the stage, [layers, 2, T, KV, L, hd] for each group.

    The first three dimensions are one, P, where a call has several texts.
    """
    g, texts = stage.graph, stage.texts
    for number, (group, parts) in enumerate(stage.new_kv.items()):
        stacked = g.op("Concat", *parts, axis=0)
        first: tuple[int | str, ...] = ("P",)
        if not texts.dims:
            first = len(parts) // 2, 2
            stacked = g.op("Reshape", stacked, g.ints(*first, group.kv_heads, -1, group.head_dim))
        dtype = FLOAT if group.scales else stage.formats.kv_dtype
        shape = (*first, group.kv_heads, texts.rows, group.head_dim)
        stage.output(new_kv_output(number), stacked, dtype, *shape)
