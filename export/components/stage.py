"""A stage as it is being written: its graph, its boundary tensors, and what components share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from onnx import TensorProto

from edgespec.bundle import Tensor
from edgespec.bundle.sublayers import rope_inputs
from edgespec.export.components.attention import AttentionForm, Heads
from edgespec.export.components.graph import GraphBuilder
from edgespec.export.formats.matrices import WeightFormat, vector
from edgespec.export.formats.weights import WeightStream
from edgespec.models import Attention, Linear, Norm

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
INT32, INT64 = TensorProto.INT32, TensorProto.INT64
_DTYPES = {FLOAT: "float32", HALF: "float16", INT32: "int32", INT64: "int64"}


@dataclass(frozen=True)
class StageFormats:
    """Precisions and results of one stage.

    Attributes:
        layers: of the linear layers.
        vocabulary: of the output projection and the embedding, which may be one matrix.
        kv_dtype: ONNX element type of the cache, FLOAT or HALF.
        candidates: for a draft: among how many ids (the tokenizer's, without padding) the graph
            picks the likeliest; 0: the graph returns all logits.
        attention: how rows attend to the cache and to each other.
    """

    layers: WeightFormat
    vocabulary: WeightFormat
    kv_dtype: int
    candidates: int
    attention: type[AttentionForm]


class StageBuilder:
    """What components emit into.

    Args:
        graph: receives the nodes.
        weights: streams the checkpoint's tensors into the role's data file.
        formats: the precisions.

    Attributes:
        inputs, outputs: the boundary tensors declared so far.
        new_kv: keys and values of the stage's attentions, [KV, S, hd] each, in their order.
    """

    def __init__(self, graph: GraphBuilder, weights: WeightStream, formats: StageFormats) -> None:
        self.graph = graph
        self.weights = weights
        self.formats = formats
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.new_kv: list[str] = []
        self._form: AttentionForm | None = None
        self.rotation = cache(self._rotation)

    def input(self, name: str, dtype: int, *shape: int | str) -> str:
        """Declare a boundary tensor that the host gives."""
        self.inputs.append(Tensor(name, _DTYPES[dtype], tuple(map(str, shape))))
        return self.graph.input(name, dtype, shape)

    def output(self, name: str, value: str, dtype: int, *shape: int | str) -> None:
        """Publish a value as a boundary tensor."""
        self.outputs.append(Tensor(name, _DTYPES[dtype], tuple(map(str, shape))))
        self.graph.output(name, value, dtype, shape)

    def norm(self, x: str, norm: Norm | None) -> str:
        """The last axis of x normalized; None: x as it is."""
        if norm is None:
            return x
        weight = vector(self.graph, self.weights, norm.weight)
        if norm.offset:
            weight = self.graph.op("Add", weight, self.graph.constant(norm.offset, np.float32))
        return self.graph.op("RMSNormalization", x, weight, axis=-1, epsilon=norm.eps)

    def linear(self, x: str, *layers: Linear) -> str:
        """[S, K] times these layers' weights: [S, N], their results side by side."""
        return self.formats.layers.linear(self.graph, self.weights, x, *layers)

    def form(self, attention: Attention) -> AttentionForm:
        """How this stage's attentions see the cache and each other, the same for all of them."""
        if self._form is None:
            self._form = self.formats.attention(self.graph, self.input, Heads.of(attention))
        return self._form

    def _rotation(self, rope: str, head_dim: int) -> tuple[str, str]:
        """Cosines and sines of a rotation table, [1, S, hd] each."""
        cos, sin = (self.input(name, FLOAT, "S", head_dim) for name in rope_inputs(rope))
        axis = self.graph.ints(0)
        return self.graph.op("Unsqueeze", cos, axis), self.graph.op("Unsqueeze", sin, axis)
