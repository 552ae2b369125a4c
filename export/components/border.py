"""What a stage passes to the next one besides the residual stream, in the columns behind it.

Layers' own inputs are computed by the first stage. Keys and values that layers of a later stage
read come from the stage that computes them, and each stage that reads them has a cache of them.
Every border has the same columns, zeros if need be, so that stages between can be left out.
"""

from __future__ import annotations

import numpy as np

from edgespec.export.components.layer_inputs import split_layer_inputs
from edgespec.export.components.self_attention import keep_keys_values
from edgespec.export.components.stage import FLOAT, StageBuilder
from edgespec.models import Attention, Decoder


class Border:
    """Emits the entry and the exit of a stage.

    Args:
        stage: receives the nodes, inputs and outputs.
        decoder: the model.
    """

    def __init__(self, stage: StageBuilder, decoder: Decoder) -> None:
        self._stage, self._decoder = stage, decoder
        self._passed: dict[int, str] = {}
        inputs, shared = decoder.layer_inputs, decoder.shared.values()
        self._widths = [
            decoder.hidden_size,
            *([] if inputs is None else [inputs.shape[1]]),
            *(2 * each.kv_heads * each.head_dim for each in shared),
        ]

    def enter(self, start: int, stop: int) -> str:
        """Emits the entry of a stage that is not the first; returns its stream, [S, hidden].

        Args:
            start: the stage's first sublayer.
            stop: the sublayer behind its last.
        """
        stage, decoder, g = self._stage, self._decoder, self._stage.graph
        rows = stage.input("hidden", FLOAT, "S", sum(self._widths))
        if len(self._widths) == 1:
            return rows
        hidden, *parts = g.multi_op(
            "Split", rows, g.ints(*self._widths), outputs=len(self._widths), axis=1
        )
        if decoder.layer_inputs is not None:
            split_layer_inputs(stage, parts.pop(0), decoder.layer_inputs)
        self._passed = dict(zip(decoder.shared, parts, strict=True))
        own = [each for each in decoder.sublayers[start:stop] if isinstance(each, Attention)]
        computed = {index for index, layer in decoder.shared.items() if layer in own}
        for index in sorted({each.source for each in own if each.source is not None} - computed):
            layer = decoder.shared[index]
            keep_keys_values(stage, index, layer, *self._heads(self._passed[index], layer))
        return hidden

    def leave(self, hidden: str) -> None:
        """Emits the exit of a stage that is not the last, `next_hidden`, from its stream."""
        stage, g = self._stage, self._stage.graph
        parts = [hidden, *stage.layer_inputs]
        for index, layer in self._decoder.shared.items():
            if index in stage.keys_values:
                parts.append(self._rows(index, layer))
            elif index in self._passed:
                parts.append(self._passed[index])
            else:
                width = g.ints(2 * layer.kv_heads * layer.head_dim)
                shape = g.op("Concat", g.op("Shape", hidden, start=0, end=1), width, axis=0)
                parts.append(g.op("Expand", g.constant(0, np.float32), shape))
        joined = g.op("Concat", *parts, axis=1) if len(parts) > 1 else hidden
        stage.output("next_hidden", joined, FLOAT, "S", sum(self._widths))

    def _heads(self, rows: str, layer: Attention) -> tuple[str, str]:
        """Splits rows [S, 2 * KV * hd] into keys and values, [KV, S, hd] each."""
        g = self._stage.graph
        heads = g.op("Reshape", rows, g.ints(0, 2 * layer.kv_heads, layer.head_dim))
        heads = g.op("Transpose", heads, perm=[1, 0, 2])
        keys, values = g.multi_op("Split", heads, outputs=2, axis=0, num_outputs=2)
        return keys, values

    def _rows(self, index: int, layer: Attention) -> str:
        """Joins new keys and values, [KV, S, hd] each, to rows [S, 2 * KV * hd]."""
        g, known = self._stage.graph, self._stage.keys_values[index]
        floats = (
            each.numbers if each.scales is None else g.op("Mul", each.numbers, each.scales)
            for each in known.new
        )
        heads = g.op("Transpose", g.op("Concat", *floats, axis=0), perm=[1, 0, 2])
        return g.op("Reshape", heads, g.ints(0, 2 * layer.kv_heads * layer.head_dim))
