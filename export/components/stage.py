"""A stage while it is being built: its graph, inputs, outputs, and operations for components."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from edgespec.bundle import Tensor
from edgespec.bundle.caches import CacheGroup
from edgespec.bundle.sublayers import rope_inputs
from edgespec.export.components.attention import AttentionForm, Known
from edgespec.export.components.graph import GraphBuilder
from edgespec.export.components.texts import OneText, Texts
from edgespec.export.formats.matrices import WeightFormat, vector
from edgespec.export.formats.weights import WeightStream
from edgespec.models import Linear, Norm
from edgespec.models.layers import LayerNorm

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
INT8, INT32, INT64 = TensorProto.INT8, TensorProto.INT32, TensorProto.INT64
DTYPES = {FLOAT: "float32", HALF: "float16", INT8: "int8", INT32: "int32", INT64: "int64"}
"""Names of element types."""


@dataclass(frozen=True)
class StageFormats:
    """The formats of a stage's weights, cache and results.

    Attributes:
        layers: format of the linear layers.
        vocabulary: format of the output projection and the embedding, which may be one matrix.
        kv_dtype: ONNX element type of the cache: FLOAT, HALF or INT8.
        candidates: for a draft, the ids among which the graph picks the likeliest: those of the
            first outputs of the projection, ascending; None: the graph returns all logits.
        attention: form of attention.
        texts: whether a call has one text or several.
    """

    layers: WeightFormat
    vocabulary: WeightFormat
    kv_dtype: int
    candidates: npt.NDArray[np.int64] | None
    attention: type[AttentionForm]
    texts: type[Texts] = OneText


class StageBuilder:
    """Receives the nodes that components emit.

    Args:
        graph: the graph, which receives the nodes.
        weights: writes the checkpoint's tensors to the role's data file.
        formats: formats of weights, cache and results.

    Attributes:
        inputs, outputs: the inputs and outputs declared so far.
        texts: the texts of a call.
        form: form of attention, which all layers of the stage share.
        new_kv: new keys and values, or their scales, [KV, S, hd] each, by the group that they
            belong to; its `layers` are left out.
        keys_values: keys and values by the number of the layer that computes them.
        layer_inputs: input of its own for each layer, [S, size]; empty if there are none.
    """

    def __init__(self, graph: GraphBuilder, weights: WeightStream, formats: StageFormats) -> None:
        self.graph = graph
        self.weights = weights
        self.formats = formats
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.new_kv = defaultdict[CacheGroup, list[str]](list)
        self.keys_values: dict[int, Known] = {}
        self.layer_inputs: list[str] = []
        self._shared: dict[str, str] = {}
        self.texts: Texts = formats.texts(graph, self.shared)
        self.form: AttentionForm = formats.attention(graph, self.shared, self.texts)
        self.rotation = cache(self._rotation)

    def input(self, name: str, dtype: int, *shape: int | str) -> str:
        """Declares an input of the stage."""
        self.inputs.append(Tensor(name, DTYPES[dtype], tuple(map(str, shape))))
        return self.graph.input(name, dtype, shape)

    def shared(self, name: str, dtype: int, *shape: int | str) -> str:
        """Declares an input that several sublayers read, unless one has declared it before."""
        if name not in self._shared:
            self._shared[name] = self.input(name, dtype, *shape)
        return self._shared[name]

    def output(self, name: str, value: str, dtype: int, *shape: int | str) -> None:
        """Makes a value an output of the stage."""
        self.outputs.append(Tensor(name, DTYPES[dtype], tuple(map(str, shape))))
        self.graph.output(name, value, dtype, shape)

    def norm(self, x: str, norm: Norm | None) -> str:
        """Normalizes the last axis of x; without a norm, returns x unchanged."""
        if norm is None:
            return x
        if not norm.weight:
            weight = self.graph.constant([1] * norm.size, np.float32)
        else:
            weight = vector(self.graph, self.weights, norm.weight)
        if norm.offset:
            weight = self.graph.op("Add", weight, self.graph.constant(norm.offset, np.float32))
        if norm.factor != 1:
            weight = self.graph.op("Mul", weight, self.graph.constant(norm.factor, np.float32))
        if isinstance(norm, LayerNorm):
            bias = vector(self.graph, self.weights, norm.bias)
            return self.graph.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=norm.eps)
        return self.graph.op("RMSNormalization", x, weight, axis=-1, epsilon=norm.eps)

    def linear(self, x: str, *layers: Linear) -> str:
        """Applies linear layers to x [S, K]; returns their results side by side, [S, N]."""
        return self.formats.layers.linear(self.graph, self.weights, x, *layers)

    def _rotation(self, rope: str, head_dim: int) -> tuple[str, str]:
        """Returns the inputs for cosines and sines of a rotation table, [T, 1, L, hd] each."""
        texts = self.texts
        cos, sin = (self.input(name, FLOAT, "S", head_dim) for name in rope_inputs(rope))
        return texts.by_head(texts.part(cos)), texts.by_head(texts.part(sin))
