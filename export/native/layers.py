"""Emits the sublayers of a decoder with native operators, whatever its matrices are stored as."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from edgespec.bundle import PART, PLACE, PoolShape, StateShape
from edgespec.export.arrays import Floats
from edgespec.export.formats.checked import read_finite
from edgespec.export.graph_builder import NATIVE, GraphBuilder
from edgespec.export.native.altup import cut_off, lower_altup
from edgespec.export.native.attention import lower_attention
from edgespec.export.native.experts import routed
from edgespec.export.native.recurrent import lower_recurrent
from edgespec.models import (
    Attention,
    Injection,
    Linear,
    Mlp,
    MlpAndMoe,
    Moe,
    Norm,
    Sublayer,
    TensorSource,
)
from edgespec.models.layers.decoder import Decoder, LayerInputs, TokenRows
from edgespec.models.layers.elements import (
    Activation,
    ClampedSwiglu,
    LayerNorm,
    PlainActivation,
    Xielu,
)
from edgespec.models.layers.recurrent import Recurrent
from edgespec.models.layers.sublayers import (
    AltUpLayer,
    OneStream,
    ParallelBlock,
    PlainMlp,
)

FLOAT = TensorProto.FLOAT
INT32 = TensorProto.INT32


class LayerGraph(ABC):
    """A graph of sublayers while it is being built.

    Args:
        graph: receives the nodes.
        tensors: the checkpoint's tensors.
        kv: format of the cache, int8, fp16 or fp32.

    Attributes:
        graph: see above.
        tensors: see above.
        kv: see above.
        pools: what attention layers keep keys and values in.
        recurrent: what recurrent layers hold.
        ropes: names of the rotation tables in use.
        keys: by layer, the matrix of the keys in its pool.
        layer_inputs: by layer, what `Injection` sublayers read besides the stream.
        sight: name of what lets rows of attention see others than their ancestors, see
            `TreeAttention`; empty: nothing does.
        sight_in_windows: whether that holds of layers with a window alone.
    """

    def __init__(self, graph: GraphBuilder, tensors: TensorSource, kv: str) -> None:
        self.graph = graph
        self.tensors = tensors
        self.kv = kv
        self.pools: list[PoolShape] = []
        self.recurrent: list[StateShape] = []
        self.ropes: list[str] = []
        self.keys: dict[int, Linear | None] = {}
        self.layer_inputs: dict[int, str] = {}
        self.sight = ""
        self.sight_in_windows = False

    @abstractmethod
    def linear(
        self, x: str, *layers: Linear, residual: str = "", factor: float = 1.0, exact: bool = False
    ) -> str:
        """Emits linear layers side by side, [S, columns of all].

        Args:
            x: [S, in_features], what they read.
            layers: the layers.
            residual: [S, columns], which is added; empty: nothing is.
            factor: factor on the products and biases before that.
            exact: whether the matrices stay in float32 whatever those of other layers become.
        """

    @abstractmethod
    def embedding(self, ids: str, name: str, scale: float = 1.0, exact: bool = False) -> str:
        """Emits rows of a table by token, [S, width].

        Args:
            ids: numbers of the rows, [S] int64.
            name: name of the table.
            scale: factor of the rows.
            exact: whether the table stays in float32 whatever matrices become.
        """

    @abstractmethod
    def by_head(self, x: str, layers: Sequence[Linear]) -> str:
        """Emits a linear layer for each head, which reads its own part of x.

        Args:
            x: [S, in_features of all], the heads' parts side by side.
            layers: the layers, alike but for the names of their tensors.

        Returns:
            [S, out_features of all].
        """

    @abstractmethod
    def experts(self, x: str, chosen: str, shares: str, layer: Moe) -> str:
        """Emits the sum of the experts of each row, each times its share, as wide as x.

        Args:
            x: [S, width], what they read.
            chosen: [S, top_k] int64, the experts of each row.
            shares: [S, top_k], their shares.
            layer: description of the mixture.
        """

    def row_inputs(self) -> None:
        """Declares where the rows of a call belong, which attention and recurrent layers read."""
        for name, size in (("write", "S"), ("parent", "S"), ("sequence", "S"), ("context", "P")):
            self.graph.input(name, INT32, [size])
        self.graph.input("starts", INT32, ["B"])

    def norm(self, x: str, norm: Norm | None) -> str:
        """Normalizes the last axis of x; without a norm, returns x unchanged."""
        if norm is None:
            return x
        parts = [self.norm_weight(norm)]
        if isinstance(norm, LayerNorm):
            zeros = np.zeros(norm.size, np.float32)
            bias = zeros if norm.bias is None else self.read(norm.bias)
            parts.append(self.graph.constant(bias, np.float32))
        return self.graph.op("Norm", x, *parts, domain=NATIVE, epsilon=float(norm.eps))

    def norm_weight(self, norm: Norm) -> str:
        """Declares what a norm multiplies by, [size] float32."""
        values = np.ones(norm.size, np.float32)
        if norm.weight:
            values = self.read(norm.weight)
        values = (values + np.float32(norm.offset)) * np.float32(norm.factor)
        return self.graph.constant(values, np.float32)

    def read(self, name: str) -> Floats:
        """Reads a tensor that stays as it is.

        Raises:
            CheckpointError: if it contains infinity or NaN.
        """
        return read_finite(self.tensors, name, 0, self.tensors.shape(name)[0])

    def vector(self, *names: str) -> str:
        """Declares vectors side by side, in float32."""
        parts = [self.read(name).reshape(-1) for name in names]
        return self.graph.constant(np.concatenate(parts), np.float32)

    def biases(self, layers: Sequence[Linear]) -> str:
        """Declares biases of layers side by side; empty if none has one."""
        if all(layer.bias is None for layer in layers):
            return ""
        parts = [
            np.zeros(layer.out_features, np.float32)
            if layer.bias is None
            else self.read(layer.bias)
            for layer in layers
        ]
        return self.graph.constant(np.concatenate(parts), np.float32)

    def ended(self, hidden: str, decoder: Decoder) -> str:
        """Emits the rows behind the last norm, of which logits or embeddings are made."""
        hidden = self.norm(hidden, decoder.norm)
        for each in decoder.dense:
            hidden = self.linear(hidden, each.linear, exact=True)
            if each.activation is not None:
                hidden = self.activated(hidden, each.activation)
        return hidden

    def entered(self, hidden: str, rows: TokenRows) -> str:
        """Emits what enters the first layer, of embeddings of tokens, [S, hidden]."""
        g = self.graph
        if rows.positions:
            place = g.input(PLACE, TensorProto.INT64, ["S"])
            place = g.op("Add", place, g.constant(rows.first, np.int64)) if rows.first else place
            hidden = g.op("Add", hidden, self.embedding(place, rows.positions, exact=True))
        if rows.segments:
            part = g.input(PART, TensorProto.INT64, ["S"])
            hidden = g.op("Add", hidden, self.embedding(part, rows.segments, exact=True))
        return self.norm(hidden, rows.norm)

    def emit_layer_inputs(self, inputs: LayerInputs, ids: str, hidden: str, count: int) -> None:
        """Emits the `layer_inputs` of so many layers, by token and its embedding."""
        g = self.graph
        size = inputs.norm.size
        found = self.embedding(ids, inputs.table, inputs.scale) if inputs.table else ""
        projected = self.linear(hidden, inputs.projection)
        projected = g.op("Reshape", projected, g.ints(0, -1, size))
        projected = g.op("Reshape", self.norm(projected, inputs.norm), g.ints(0, -1))
        both = g.op("Add", projected, found) if found else projected
        parts = [both]
        if count > 1:
            parts = g.multi_op("Split", both, outputs=count, axis=1, num_outputs=count)
        self.layer_inputs = dict(enumerate(parts))

    def gated(self, both: str, activation: Activation) -> str:
        """Emits the activated gate times up, which lie side by side."""
        if isinstance(activation, ClampedSwiglu):
            return self.graph.op(
                "GatedUnit",
                both,
                domain=NATIVE,
                activation="clamped",
                alpha=float(activation.alpha),
                limit=float(activation.limit),
            )
        if activation in ("gelu", "relu2"):
            gate, up = self.graph.multi_op("Split", both, outputs=2, axis=1, num_outputs=2)
            return self.graph.op("Mul", self.activated(gate, activation), up)
        return self.graph.op("GatedUnit", both, domain=NATIVE, activation=activation)

    def added(self, hidden: str, number: int, sublayer: Sublayer) -> str:
        """Emits a sublayer, and adds what it gives to the stream."""
        if isinstance(sublayer, AltUpLayer):
            return self.graph.op("Add", hidden, lower_altup(self, hidden, number, sublayer))
        if isinstance(sublayer, ParallelBlock):
            x = self.norm(hidden, sublayer.norm)
            for part in sublayer.parts:
                hidden = self.lowered(x, number, part, hidden, part.output_factor)
            return hidden
        total = self._sum(hidden, number, sublayer)
        if not isinstance(sublayer, Attention | Mlp | PlainMlp):
            return total
        total = self.norm(total, sublayer.sum_norm)
        if isinstance(sublayer, Attention) and sublayer.second_norm is not None:
            return self.norm(self.graph.op("Add", hidden, total), sublayer.second_norm)
        return total

    def _sum(self, hidden: str, number: int, sublayer: OneStream) -> str:
        """Emits the stream with what a sublayer adds to it."""
        if sublayer.post_norm is None and not isinstance(sublayer, Moe | MlpAndMoe):
            x = self.norm(hidden, sublayer.norm)
            return self.lowered(x, number, sublayer, hidden, sublayer.output_factor)
        return self.graph.op("Add", hidden, self._contribution(hidden, number, sublayer))

    def _contribution(self, hidden: str, number: int, sublayer: OneStream) -> str:
        """Emits a sublayer; returns what it adds to the stream, [S, hidden]."""
        x = self.norm(hidden, sublayer.norm)
        if isinstance(sublayer, Moe):
            return self.norm(self._mixture(x, hidden, sublayer), sublayer.post_norm)
        if isinstance(sublayer, MlpAndMoe):
            both = sublayer.mlp, sublayer.moe
            beside, update = (self._contribution(x, number, each) for each in both)
            if sublayer.share is not None:
                share = self.linear(x, sublayer.share, exact=True)
                share = self.graph.op("Sigmoid", share, domain=NATIVE)
                beside = self.graph.op("Mul", beside, share)
            update = self.graph.op("Add", beside, update)
        else:
            update = self.lowered(x, number, sublayer)
        update = self.norm(update, sublayer.post_norm)
        if sublayer.output_factor != 1:
            factor = self.graph.constant(sublayer.output_factor, np.float32)
            update = self.graph.op("Mul", update, factor)
        return update

    def _mixture(self, x: str, hidden: str, layer: Moe) -> str:
        """Emits a mixture of experts, [S, hidden]; for parameters see `routed`."""
        chosen, shares = routed(self, x, hidden, layer)
        if layer.shares_first:
            x = self.graph.op("Mul", x, shares)
            none = self.graph.op("Mul", shares, self.graph.constant(0, np.float32))
            shares = self.graph.op("Add", none, self.graph.constant(1, np.float32))
        x = x if layer.entry is None else self.linear(x, layer.entry)
        found = self.experts(x, chosen, shares, layer)
        return found if layer.back is None else self.linear(found, layer.back)

    def activated(self, x: str, activation: PlainActivation | Xielu) -> str:
        """Emits an activation without a gate."""
        if isinstance(activation, Xielu):
            return self._learned(x, activation)
        if activation in ("relu", "relu2"):
            x = self.graph.op("Relu", x)
            return self.graph.op("Mul", x, x) if activation == "relu2" else x
        if activation == "tanh":
            return self.graph.op("Tanh", x)
        approximate = "tanh" if activation == "gelu_tanh" else "none"
        return self.graph.op("Gelu", x, approximate=approximate)

    def _learned(self, x: str, activation: Xielu) -> str:
        """Emits an activation with learned parameters."""
        g = self.graph
        names = (activation.positive, activation.negative, activation.slope)
        positive, negative, slope = (float(self.tensors.read(name).reshape(())) for name in names)
        above = g.op("Relu", x)
        below = g.op("Sub", x, above)
        # exp(x) - 1 by the sigmoid, whose bits are the same on all processors.
        share = g.op("Sigmoid", below, domain=NATIVE)
        rest = g.op("Sub", g.constant(1, np.float32), share)
        grown = g.op("Div", g.op("Sub", share, rest), rest)
        parts = (
            (g.op("Mul", above, above), np.log1p(np.exp(positive))),
            (g.op("Sub", grown, below), slope + np.log1p(np.exp(negative))),
            (x, slope),
        )
        return g.op("Sum", *(g.op("Mul", y, g.constant(by, np.float32)) for y, by in parts))

    def lowered(
        self,
        x: str,
        number: int,
        sublayer: Attention | Mlp | PlainMlp | Injection | Recurrent,
        residual: str = "",
        factor: float = 1.0,
    ) -> str:
        """Emits a sublayer of which a matrix is the last part, and adds the residual there.

        Args:
            x: [S, width], what it reads.
            number: number of its layer.
            sublayer: description of the sublayer.
            residual: [S, hidden], which is added; empty: nothing is.
            factor: factor on the product before that.
        """
        if isinstance(sublayer, Attention):
            inner = lower_attention(self, x, number, sublayer)
            last = sublayer.o
        elif isinstance(sublayer, Mlp):
            both = self.linear(x, sublayer.gate, sublayer.up)
            if sublayer.cutoff is not None:
                gate, up = self.graph.multi_op("Split", both, outputs=2, axis=1, num_outputs=2)
                gate = cut_off(self, gate, sublayer.cutoff)
                both = self.graph.op("Concat", gate, up, axis=1)
            inner = self.norm(self.gated(both, sublayer.activation), sublayer.inner_norm)
            last = sublayer.down
        elif isinstance(sublayer, PlainMlp):
            inner = self.activated(self.linear(x, sublayer.up), sublayer.activation)
            last = sublayer.down
        elif isinstance(sublayer, Injection):
            gate = self.linear(x, sublayer.gate)
            both = self.graph.op("Concat", gate, self.layer_inputs[number], axis=-1)
            inner = self.gated(both, sublayer.activation)
            last = sublayer.out
        else:
            inner = lower_recurrent(self, x, number, sublayer)
            last = sublayer.out
        return self.linear(inner, last, residual=residual, factor=factor)
