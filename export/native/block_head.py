"""Emits a block drafter as a native graph (DFlash: Chen et al., 2026).

Of the rows of a call, T read features of the target, `target_features` [T, F], and give every layer
keys and values of their positions. The others are rows of blocks, of the newest token and of masks
behind it, and see all rows of their block. `sight` [S] int32 says which is which: -1, and of a
block's row the number of rows that follow it there. A drafter that says how far it can be trusted
gives this as `features` [S, 1], and DFlash2 the factors of what the token before adds, [S, rank].
These are of blocks' rows; the others' mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from edgespec.bundle import FEATURES, LOGITS, SIGHT, Block, Native
from edgespec.export.arrays import Floats
from edgespec.export.formats.checked import read_finite
from edgespec.export.graph_builder import OF_BLOCKS, PLACES
from edgespec.export.heads.borrowing import borrow_embedding, borrow_projection
from edgespec.export.native.attention import lower_attention
from edgespec.export.native.graph import NativeGraphBuilder, write_ids
from edgespec.export.native.head import fused
from edgespec.export.native.layers import FLOAT, INT32
from edgespec.export.native.weights import TileWeights
from edgespec.models import TensorSource
from edgespec.models.heads.block_head import BlockHead, BlockLayer, Convolutions
from edgespec.models.heads.checkpoint import HeadCheckpoint


def write_native_block(
    folder: Path, name: str, checkpoint: HeadCheckpoint, weights: TileWeights, target: str
) -> Native:
    """Writes a block drafter's native graph; see `write_native_head`."""
    native = NativeGraphBuilder(weights, name)
    head = checkpoint.head
    assert isinstance(head, BlockHead), "the caller says so"
    source = onnx.load(folder / target, load_external_data=False)
    native.inputs()
    g = native.graph
    sight = g.input(SIGHT, INT32, ["S"])
    of_target = g.op("Less", sight, g.constant(0, np.int32))
    context = fused(native, head.fusion)
    block = g.rename(_numbers(native, g.op("Not", of_target)), OF_BLOCKS)
    lying = g.op("Concat", _numbers(native, of_target), block, axis=0)
    one = g.constant(1, np.int64)
    count = g.op("Size", sight)
    rising = g.op("Range", g.constant(0, np.int64), count, one)
    place = g.rename(g.op("ScatterElements", lying, lying, rising, axis=0), PLACES)
    stream = g.op("Gather", borrow_embedding(source, g), block, axis=0)
    depth = g.op("Sub", g.constant(head.size - 1, np.int32), g.op("Gather", sight, block, axis=0))

    def attended(number: int, layer: BlockLayer, x: str, residual: str) -> str:
        rows = g.op("Gather", g.op("Concat", context, x, axis=0), place, axis=0)
        native.sight = "" if layer.causal else sight
        found = lower_attention(native, rows, number, layer.attention)
        inner = g.op("Gather", found, block, axis=0)
        return native.linear(inner, layer.attention.o, residual=residual)

    for number, layer in enumerate(head.layers):
        x = native.norm(stream, layer.attention.norm)
        attend = partial(attended, number, layer)
        stream = _around(native, attend, x, stream, layer.around_attention, depth)
        x = native.norm(stream, layer.mlp.norm)
        feed = partial(native.lowered, number=number, sublayer=layer.mlp)
        stream = _around(native, feed, x, stream, layer.around_mlp, depth)
    output = native.norm(stream, head.norm)
    output = g.op("Gather", g.op("Concat", context, output, axis=0), place, axis=0)
    chosen = g.op("Gather", output, "logit_rows", axis=0)
    if head.lm_head is None:
        logits = borrow_projection(source, g, chosen)
        outputs = head.vocab_size
    else:
        logits = native.linear(chosen, head.lm_head)
        outputs = head.lm_head.out_features
    g.output(LOGITS, logits, FLOAT, ["R", outputs])
    told, width = "", 1
    if (found := _confidence(checkpoint.tensors, head)) is not None:
        weight = g.constant(found[0][: head.hidden_size, None], np.float32)
        told = g.op("Gemm", output, weight, g.constant(found[1], np.float32))
    elif head.markov is not None and head.markov.factors is not None:
        told = native.linear(output, head.markov.factors)
        width = head.markov.rank
    if told:  # of rows of blocks: nobody asks for the others'
        g.output(FEATURES, told, FLOAT, ["S", width])
    return native.save(folder, write_ids(folder, name, checkpoint.ids))


def _around(
    native: NativeGraphBuilder,
    sublayer: Callable[..., str],
    x: str,
    stream: str,
    convolutions: Convolutions | None,
    depth: str,
) -> str:
    """Emits a sublayer of rows of blocks, and convolutions around it; returns the stream.

    Args:
        native: receives the nodes.
        sublayer: emits the sublayer of [n, hidden], and adds its `residual`.
        x: [n, hidden], the normalized rows.
        stream: [n, hidden], to which the result is added.
        convolutions: those around it; None: there are none.
        depth: [n], how many rows of its block are before a row.
    """
    if convolutions is None:
        return sublayer(x, residual=stream)
    g = native.graph
    taps = convolutions.taps
    groups = convolutions.groups
    base = read_finite(native.tensors, convolutions.base, 0, 2).reshape(2, taps, groups, -1)
    kernels = native.linear(x, convolutions.projection)
    parts = g.multi_op("Split", kernels, outputs=2 * taps, axis=1, num_outputs=2 * taps)

    def convolved(rows: str, side: int) -> str:
        grouped = g.op("Reshape", rows, g.ints(-1, groups, base.shape[-1]))
        sums = list[str]()
        for tap in range(taps):
            above = grouped
            more = g.op("Unsqueeze", parts[side * taps + tap], g.ints(2))
            factor = g.op("Add", g.constant(base[side, tap], np.float32), more)
            if tap:
                above = g.op("Pad", grouped, g.ints(tap, 0, 0, 0, 0, 0))
                above = g.op("Slice", above, g.ints(0), g.ints(-tap), g.ints(0))
                inside = g.op("GreaterOrEqual", depth, g.constant(tap, np.int32))
                inside = g.op("Unsqueeze", g.op("Cast", inside, to=FLOAT), g.ints(1, 2))
                factor = g.op("Mul", factor, inside)
            sums.append(g.op("Mul", above, factor))
        return g.op("Reshape", g.op("Sum", *sums), g.ints(-1, groups * base.shape[-1]))

    return g.op("Add", stream, convolved(sublayer(convolved(x, 0), residual=""), 1))


def write_block(folder: Path, name: str, checkpoint: HeadCheckpoint, precise: bool) -> Block:
    """Writes what the token before adds to logits; returns the record of a drafter's block.

    Args:
        folder: folder of the bundle.
        name: name of the drafter's role.
        checkpoint: the drafter.
        precise: whether numbers stay in float32; else they become float16.

    Raises:
        CheckpointError: if a number is not finite.
    """
    head = checkpoint.head
    tensors = checkpoint.tensors
    assert isinstance(head, BlockHead), "the caller says so"
    if (markov := head.markov) is None:
        return Block(head.size, head.from_anchor)
    tables = [
        read_finite(tensors, each.weight, 0, each.out_features)
        for each in (markov.previous, markov.following)
    ]
    tables[1] = tables[1][: len(checkpoint.ids)]
    found = _confidence(tensors, head)
    last = np.zeros((1, markov.rank), np.float32)
    if found is not None and len(found[0]) > head.hidden_size:
        last[0] = found[0][head.hidden_size :]
    file = f"{name}.pairs.npy"
    dtype = np.float32 if precise else np.float16
    np.save(folder / file, np.concatenate([*tables, last]).astype(dtype), allow_pickle=False)
    return Block(head.size, head.from_anchor, file, markov.selects)


def _numbers(native: NativeGraphBuilder, chosen: str) -> str:
    """Emits the numbers of the rows for which `chosen` [S] is true."""
    g = native.graph
    return g.op("Reshape", g.op("NonZero", chosen), g.ints(-1))


def _confidence(tensors: TensorSource, head: BlockHead) -> tuple[Floats, Floats] | None:
    """Reads what says how far a drafter can be trusted, [hidden, and perhaps rank] and [1]."""
    linear = None if head.markov is None else head.markov.confidence
    if linear is None or linear.bias is None:
        return None
    weight, bias = (read_finite(tensors, name, 0, 1) for name in (linear.weight, linear.bias))
    return weight[0], bias
