"""Formats in which matrices are stored and multiplied.

A `WeightFormat` emits linear layers and embeddings into a graph. Only this module and `weights`
know about quantization; code that composes a model does not depend on the precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np
from onnx import TensorProto

from edgespec.export.components.graph import CONTRIB, GraphBuilder
from edgespec.export.formats.kept import Form
from edgespec.export.formats.weights import Names, WeightStream, Written
from edgespec.models import Linear


class WeightFormat(Protocol):
    """A format in which matrices are stored, multiplied and looked up."""

    def linear(self, graph: GraphBuilder, weights: WeightStream, x: str, *layers: Linear) -> str:
        """Emits linear layers as one product: x [S, K] gives [S, N], both float32.

        N is the sum over all layers, whose results are side by side. Either all of the layers have
        a bias or none.
        """

    def embedding(self, graph: GraphBuilder, weights: WeightStream, ids: str, name: str) -> str:
        """Emits a lookup of rows of the [V, D] matrix `name`: ids [S] int64 give [S, D] float32."""


@dataclass(frozen=True)
class BlockFormat:
    """int4 or int8 in blocks along K, for MatMulNBits and GatherBlockQuantized.

    Scales are stored in half precision, so int4 in blocks of 32 takes 4.5 bits per weight. Products
    widen the scales. ONNX Runtime returns rows of an embedding rounded to half precision.
    """

    bits: int
    block_size: int
    scales: type[np.floating] = np.float16

    def linear(self, graph: GraphBuilder, weights: WeightStream, x: str, *layers: Linear) -> str:
        """See `WeightFormat`."""
        names = tuple(layer.weight for layer in layers)
        rows, width = weights.shape(names)
        shape = (rows, -(-width // self.block_size), self._blob)
        packed, scales, *zeros = self._declare(graph, weights, names, shape)
        if self.scales is not np.float32:
            scales = graph.op("Cast", scales, to=TensorProto.FLOAT)  # engines do that once, at load
        y = graph.op(
            "MatMulNBits",
            x,
            packed,
            scales,
            *zeros,
            domain=CONTRIB,
            K=width,
            N=rows,
            bits=self.bits,
            block_size=self.block_size,
            accuracy_level=4,  # int8 activations on CPUs: integer dot products are fastest
        )
        return _add_bias(graph, weights, y, layers)

    def embedding(self, graph: GraphBuilder, weights: WeightStream, ids: str, name: str) -> str:
        """See `WeightFormat`."""
        rows, width = weights.tensors.shape(name)
        if width % self.block_size:
            # GatherBlockQuantized cannot pad blocks, so such a (small) matrix is stored as fp16.
            return FloatFormat(np.float16).embedding(graph, weights, ids, name)
        shape = (rows, width * self.bits // 8)
        packed, scales, *zeros = self._declare(graph, weights, (name,), shape, suffix="/rows")
        found = graph.op(
            "GatherBlockQuantized",
            packed,
            ids,
            scales,
            *zeros,
            domain=CONTRIB,
            bits=self.bits,
            block_size=self.block_size,
            gather_axis=0,
            quantize_axis=1,
        )
        if self.scales is np.float32:
            return found
        # The rows are widened, not the scales: OpenVINO needs constant scales here.
        return graph.op("Cast", found, to=TensorProto.FLOAT)

    @property
    def _blob(self) -> int:
        return self.block_size * self.bits // 8

    def _declare(
        self,
        graph: GraphBuilder,
        weights: WeightStream,
        names: Names,
        shape: tuple[int, ...],
        suffix: str = "",
    ) -> list[str]:
        """Declares packed weights and scales, and zero points if there are any."""
        name, place, rows = _label(names), self._written(weights, names), shape[0]
        packed = graph.external(
            f"{name}.packed{suffix}", TensorProto.UINT8, shape, place.offset, place.nbytes
        )
        scales = graph.external(
            f"{name}.scales{suffix}",
            TensorProto.FLOAT if self.scales is np.float32 else TensorProto.FLOAT16,
            (rows, place.scale_nbytes // np.dtype(self.scales).itemsize // rows),
            place.scale_offset,
            place.scale_nbytes,
        )
        if not place.zero_nbytes:
            return [packed, scales]
        zeros = graph.external(
            f"{name}.zeros{suffix}",
            TensorProto.UINT8,
            (rows, place.zero_nbytes // rows),
            place.zero_offset,
            place.zero_nbytes,
        )
        return [packed, scales, zeros]

    def _written(self, weights: WeightStream, names: Names) -> Written:
        return weights.blocks(names, self.bits, self.block_size)


@dataclass(frozen=True)
class KeptFormat(BlockFormat):
    """The blocks of the checkpoint's own file, stored as they are.

    Attributes:
        zero_points: whether blocks have zero points.
    """

    zero_points: bool = False

    def _written(self, weights: WeightStream, names: Names) -> Written:
        form = Form(self.bits, self.block_size, self.scales, self.zero_points)
        return weights.kept(names, form)


@dataclass(frozen=True)
class MixedFormat:
    """Several formats: most matrices in one, and some in others, for example with more bits.

    Adjacent layers of the same format are one product.

    Args:
        most: format of the matrices that are not in `others`.
        others: formats of other matrices by the tensor's name.
    """

    most: WeightFormat
    others: Mapping[str, WeightFormat]

    def linear(self, graph: GraphBuilder, weights: WeightStream, x: str, *layers: Linear) -> str:
        """See `WeightFormat`."""
        alike = [tuple(run) for _, run in groupby(layers, lambda layer: self._of(layer.weight))]
        parts = [self._of(run[0].weight).linear(graph, weights, x, *run) for run in alike]
        return parts[0] if len(parts) == 1 else graph.op("Concat", *parts, axis=-1)

    def embedding(self, graph: GraphBuilder, weights: WeightStream, ids: str, name: str) -> str:
        """See `WeightFormat`."""
        return self._of(name).embedding(graph, weights, ids, name)

    def _of(self, name: str) -> WeightFormat:
        return self.others.get(name, self.most)


@dataclass(frozen=True)
class FloatFormat:
    """fp16 or fp32 weights; the arithmetic is float32."""

    dtype: type[np.floating]

    def linear(self, graph: GraphBuilder, weights: WeightStream, x: str, *layers: Linear) -> str:
        """See `WeightFormat`."""
        stored = _stored(graph, weights, tuple(layer.weight for layer in layers), self.dtype)
        if self.dtype is not np.float32:
            stored = graph.op("Cast", stored, to=TensorProto.FLOAT)
        return _add_bias(graph, weights, graph.op("Gemm", x, stored, transB=1), layers)

    def embedding(self, graph: GraphBuilder, weights: WeightStream, ids: str, name: str) -> str:
        """See `WeightFormat`."""
        stored = _stored(graph, weights, (name,), self.dtype)
        rows = graph.op("Gather", stored, ids, axis=0)
        return rows if self.dtype is np.float32 else graph.op("Cast", rows, to=TensorProto.FLOAT)


def vector(graph: GraphBuilder, weights: WeightStream, *names: str) -> str:
    """Emits a norm's weight, or biases side by side, always in float32."""
    return _stored(graph, weights, names, np.float32)


def _stored(
    graph: GraphBuilder, weights: WeightStream, names: Names, dtype: type[np.floating]
) -> str:
    place = weights.floats(names, dtype)
    kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.FLOAT16
    return graph.external(_label(names), kind, weights.shape(names), place.offset, place.nbytes)


def _add_bias(graph: GraphBuilder, weights: WeightStream, y: str, layers: Sequence[Linear]) -> str:
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if not biases:
        return y
    assert len(biases) == len(layers)
    return graph.op("Add", y, vector(graph, weights, *biases))


def _label(names: Names) -> str:
    return "+".join(names)
