"""Emits parts of a decoder in float32 with the native graph's operators, for calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from edgespec.export.graph_builder import GraphBuilder
from edgespec.export.native.altup import gathered, spread
from edgespec.export.native.layers import FLOAT, LayerGraph
from edgespec.models import (
    Attention,
    Decoder,
    Injection,
    Linear,
    Mlp,
    Moe,
    Sublayer,
    TensorSource,
)
from edgespec.models.layers.decoder import TokenRows
from edgespec.models.layers.recurrent import Recurrent
from edgespec.models.layers.sublayers import PlainMlp, inner_parts

# Inputs: what a part reads, the sum of a mixture's experts, and what `Injection` reads besides.
STREAM = "stream"
EXPERTS = "experts"
LAYER_INPUT = "layer_input"
# Outputs: what a part makes of the stream; what experts read, and what `routed` gives.
RESULT = "result"
READ_BY_EXPERTS = "read_by_experts"
CHOSEN = "chosen"
SHARES = "shares"


class FloatGraph(LayerGraph):
    """A part of a decoder, whose matrices are inputs: rounded ones can take their places.

    Products are ONNX's own, which read the same rows as `BlockLinear` and round nothing.

    Args:
        tensors: the checkpoint's tensors.

    Attributes:
        reads: the matrices by the output that has what they read.
    """

    def __init__(self, tensors: TensorSource) -> None:
        super().__init__(GraphBuilder("part", ""), tensors, "fp32")
        self.reads: dict[str, list[Linear]] = {}
        self._readers: dict[str, list[Linear]] = {}

    def begin(self, decoder: Decoder) -> None:
        """Emits what becomes of the rows of tables: the stream, and inputs of layers."""
        stream = self.embedding("", decoder.embedding, decoder.embedding_scale)
        if decoder.layer_inputs is not None:
            size = decoder.layer_inputs.norm.size
            self.emit_layer_inputs(decoder.layer_inputs, "", stream, len(decoder.layers))
            for number, name in self.layer_inputs.items():
                self.graph.output(f"{LAYER_INPUT}.{number}", name, FLOAT, ["S", size])
        self._end(stream if decoder.altup is None else spread(self, stream, decoder.altup))

    def token_rows(self, rows: TokenRows) -> None:
        """Emits what enters the first layer, of embeddings of tokens."""
        self._end(self.entered(self._stream(), rows))

    def sublayer(self, number: int, sublayer: Sublayer) -> None:
        """Emits a sublayer of a layer, and adds what it gives to the stream."""
        parts = inner_parts(sublayer)
        if any(isinstance(part, Attention | Recurrent) for part in parts):
            self.row_inputs()
        for part in parts:
            if isinstance(part, Injection):
                shape = "S", part.gate.out_features
                self.layer_inputs[number] = self.graph.input(LAYER_INPUT, FLOAT, shape)
        self._end(self.added(self._stream(), number, sublayer))

    def expert(self, expert: Mlp | PlainMlp) -> None:
        """Emits an expert, to which nothing is added."""
        self._end(self.lowered(self._stream(), 0, expert))

    def last_norm(self, decoder: Decoder) -> None:
        """Emits the norm behind the last layer."""
        stream = self._stream()
        if decoder.altup is not None:
            stream = gathered(self, stream, decoder.altup)
        self._end(self.ended(stream, decoder))

    def linear(
        self, x: str, *layers: Linear, residual: str = "", factor: float = 1.0, exact: bool = False
    ) -> str:
        """See `LayerGraph`."""
        g = self.graph
        parts = []
        for layer in layers:
            if exact:
                weight = g.constant(self.tensors.read(layer.weight), np.float32)
            else:
                weight = g.input(layer.weight, FLOAT, [layer.out_features, layer.in_features])
            parts.append(g.op("Gemm", x, weight, self.biases([layer]), transB=1))
        if not exact:
            self._readers.setdefault(x, []).extend(layers)
        y = parts[0] if len(parts) == 1 else g.op("Concat", *parts, axis=-1)
        if factor != 1:
            y = g.op("Mul", y, g.constant(factor, np.float32))
        return g.op("Add", y, residual) if residual else y

    def embedding(self, ids: str, name: str, scale: float = 1.0, exact: bool = False) -> str:
        """Declares rows of a table as an input of its name."""
        rows = self.graph.input(name, FLOAT, ["S", self.tensors.shape(name)[1]])
        return (
            rows
            if scale == 1
            else self.graph.op("Mul", rows, self.graph.constant(scale, np.float32))
        )

    def by_head(self, x: str, layers: Sequence[Linear]) -> str:
        """See `LayerGraph`."""
        count = len(layers)
        parts = [x]
        if count > 1:
            parts = self.graph.multi_op("Split", x, outputs=count, axis=1, num_outputs=count)
        each = [self.linear(part, layer) for part, layer in zip(parts, layers, strict=True)]
        return self.graph.op("Concat", *each, axis=1)

    def experts(self, x: str, chosen: str, shares: str, layer: Moe) -> str:
        """Declares the sum of the experts as an input; which a row chooses are outputs."""
        g = self.graph
        width = layer.experts[0].down.out_features
        g.output(READ_BY_EXPERTS, x, FLOAT, ["S", width])
        g.output(CHOSEN, chosen, TensorProto.INT64, ["S", layer.top_k])
        g.output(SHARES, shares, FLOAT, ["S", layer.top_k])
        return g.input(EXPERTS, FLOAT, ["S", width])

    def _stream(self) -> str:
        return self.graph.input(STREAM, FLOAT, ["S", "D"])

    def _end(self, result: str) -> None:
        self.graph.output(RESULT, result, FLOAT, ["S", "D"])
        for number, (x, layers) in enumerate(self._readers.items()):
            name = f"read.{number}"
            self.graph.output(name, x, FLOAT, ["S", layers[0].in_features])
            self.reads[name] = layers
