"""Emits a decoder as the native graph: about eight nodes a layer, one graph for all layers.

A call holds rows of any number of sequences. Attention writes keys and values of the rows to free
slots of the pool itself, and a row sees its sequence's committed slots and its ancestors in the
call, see `runtime/kernels/tree_attention.cc`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from edgespec.bundle import (
    LAST_HIDDEN,
    LOGITS,
    Native,
    PoolShape,
    Precision,
    StateShape,
)
from edgespec.bundle.sublayers import rope_inputs
from edgespec.errors import UnsupportedModelError
from edgespec.export.components.decoder import entering
from edgespec.export.components.graph import NATIVE, DataFile, GraphBuilder
from edgespec.export.formats.tiles import BLOCK
from edgespec.export.native.experts import lower_moe
from edgespec.export.native.recurrent import lower_convolution, lower_delta
from edgespec.export.native.weights import Matrix, TileWeights
from edgespec.models import (
    Attention,
    Decoder,
    Injection,
    Linear,
    Mlp,
    MlpAndMoe,
    Moe,
    Norm,
    ShortConvolution,
    Sublayer,
)
from edgespec.models.layers import (
    Activation,
    ClampedSwiglu,
    LayerInputs,
    LayerNorm,
    Recurrent,
)

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
_KV = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "int8": TensorProto.INT8}
_LANES = 16

_log = logging.getLogger(__name__)


class NativeGraph:
    """The graph while it is being built.

    Args:
        weights: writes the model's matrices.
        name: name of the graph.
    """

    def __init__(self, weights: TileWeights, name: str) -> None:
        self.weights = weights
        self.graph = GraphBuilder(name, weights.data.name)
        self.pools: list[PoolShape] = []
        self.recurrent: list[StateShape] = []
        self.ropes: list[str] = []
        self._layer_inputs: list[str] = []
        self._shared: Mapping[int, Attention] = {}  # by layer: attention that others read keys of

    def build(self, decoder: Decoder) -> None:
        """Emits all nodes of a decoder."""
        g, ids, self._shared = self.graph, self.inputs(), decoder.shared
        hidden = self.embedding(ids, decoder.embedding, decoder.embedding_scale)
        hidden = g.rename(hidden, entering(0))
        if decoder.layer_inputs is not None:
            self._emit_layer_inputs(decoder.layer_inputs, ids, hidden, len(decoder.layers))
        for number, layer in enumerate(decoder.layers):
            for sublayer in layer:
                hidden = self._added(hidden, number, sublayer)
            if decoder.layer_factors:
                hidden = g.op("Mul", hidden, self.vector(decoder.layer_factors[number]))
            hidden = g.rename(hidden, entering(number + 1))
        hidden = g.op("Gather", hidden, "logit_rows", axis=0)
        hidden = self.norm(hidden, decoder.norm)
        if decoder.embeds:
            g.output(LAST_HIDDEN, hidden, FLOAT, ["R", decoder.hidden_size])
            return
        logits = self.linear(hidden, decoder.lm_head, soft_cap=decoder.logit_softcap or 0.0)
        g.output(LOGITS, logits, FLOAT, ["R", decoder.lm_head.out_features])

    def inputs(self) -> str:
        """Declares the inputs that all graphs have; returns the tokens' name."""
        for name, shape in (("write", "S"), ("parent", "S"), ("sequence", "S"), ("context", "P")):
            self.graph.input(name, INT32, [shape])
        self.graph.input("starts", INT32, ["B"])
        self.graph.input("logit_rows", INT64, ["R"])
        return self.graph.input("input_ids", INT64, ["S"])

    def save(self, folder: Path, ids: str = "") -> Native:
        """Writes the graph, and what was written of the weights.

        Args:
            folder: folder to write to.
            ids: see `Native.ids`.
        """
        self.weights.data.flush()
        file = f"{self.graph.name}.native.onnx"
        self.graph.save(folder / file)
        return Native(
            file,
            self.weights.data.name,
            tuple(self.pools),
            tuple(self.ropes),
            self.weights.formats,
            tuple(self.recurrent),
            ids,
        )

    def norm(self, x: str, norm: Norm | None) -> str:
        """Normalizes the last axis of x; without a norm, returns x unchanged."""
        if norm is None:
            return x
        if isinstance(norm, LayerNorm):
            bias = self.vector(norm.bias)
            weight = self.norm_weight(norm)
            return self.graph.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=norm.eps)
        weight = self.norm_weight(norm)
        return self.graph.op("RMSNormalization", x, weight, axis=-1, epsilon=norm.eps)

    def norm_weight(self, norm: Norm) -> str:
        """Declares what a norm multiplies by, [size] float32."""
        values = np.ones(norm.size, np.float32)
        if norm.weight:
            values = self.weights.tensors.read(norm.weight)
        values = (values + np.float32(norm.offset)) * np.float32(norm.factor)
        return self.graph.constant(values, np.float32)

    def vector(self, *names: str) -> str:
        """Declares vectors side by side, in float32."""
        parts = [self.weights.tensors.read(name).reshape(-1) for name in names]
        return self.graph.constant(np.concatenate(parts), np.float32)

    def linear(
        self,
        x: str,
        *layers: Linear,
        residual: str = "",
        factor: float = 1.0,
        soft_cap: float = 0.0,
    ) -> str:
        """Emits linear layers side by side; the product is multiplied, capped and added to."""
        matrices = [self.weights.matrix(layer.weight) for layer in layers]
        return self.product(x, matrices, self.biases(layers), residual, factor, soft_cap)

    def product(
        self,
        x: str,
        matrices: Sequence[Matrix],
        bias: str = "",
        residual: str = "",
        factor: float = 1.0,
        soft_cap: float = 0.0,
    ) -> str:
        """Emits a `BlockLinear`."""
        more = {"factor": float(factor)} if factor != 1 else {}
        more |= {"soft_cap": float(soft_cap)} if soft_cap else {}
        return self.graph.op(
            "BlockLinear",
            x,
            bias,
            residual,
            *map(self.tiles, matrices),
            domain=NATIVE,
            formats=" ".join(each.format for each in matrices),
            columns=[each.rows for each in matrices],
            **more,
        )

    def tiles(self, matrix: Matrix) -> str:
        """Declares the tiles of a matrix."""
        name, others = matrix.names[0], len(matrix.names) - 1
        name += f"+{others}" if others else ""
        return self.graph.external(
            name, TensorProto.UINT8, [matrix.nbytes], matrix.offset, matrix.nbytes
        )

    def biases(self, layers: Sequence[Linear]) -> str:
        """Declares biases of layers side by side; empty if none has one."""
        if all(layer.bias is None for layer in layers):
            return ""
        parts = [
            np.zeros(layer.out_features, np.float32)
            if layer.bias is None
            else self.weights.tensors.read(layer.bias)
            for layer in layers
        ]
        return self.graph.constant(np.concatenate(parts), np.float32)

    def embedding(self, ids: str, name: str, scale: float = 1.0) -> str:
        """Emits rows of a table by token, [S, width]."""
        matrix = self.weights.matrix(name)
        rows = self.graph.op(
            "BlockEmbedding",
            ids,
            self.tiles(matrix),
            domain=NATIVE,
            format=matrix.format,
            columns=matrix.rows,
            width=matrix.width,
        )
        if scale == 1:
            return rows
        return self.graph.op("Mul", rows, self.graph.constant(scale, np.float32))

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
        return self.graph.op("GatedUnit", both, domain=NATIVE, activation=activation)

    def _added(self, hidden: str, number: int, sublayer: Sublayer) -> str:
        """Emits a sublayer, and adds what it gives to the stream."""
        if sublayer.post_norm is None and not isinstance(sublayer, Moe | MlpAndMoe):
            x = self.norm(hidden, sublayer.norm)
            return self.lowered(x, number, sublayer, hidden, sublayer.output_factor)
        return self.graph.op("Add", hidden, self._contribution(hidden, number, sublayer))

    def _contribution(self, hidden: str, number: int, sublayer: Sublayer) -> str:
        """Emits a sublayer; returns what it adds to the stream, [S, hidden]."""
        x = self.norm(hidden, sublayer.norm)
        if isinstance(sublayer, Moe):
            return self.norm(lower_moe(self, x, hidden, sublayer), sublayer.post_norm)
        if isinstance(sublayer, MlpAndMoe):
            parts = (self._contribution(x, number, each) for each in (sublayer.mlp, sublayer.moe))
            update = self.graph.op("Add", *parts)
        else:
            update = self.lowered(x, number, sublayer)
        update = self.norm(update, sublayer.post_norm)
        if sublayer.output_factor != 1:
            factor = self.graph.constant(sublayer.output_factor, np.float32)
            update = self.graph.op("Mul", update, factor)
        return update

    def lowered(
        self,
        x: str,
        number: int,
        sublayer: Attention | Mlp | Injection | Recurrent,
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
            inner, last = self._attention(x, number, sublayer), sublayer.o
        elif isinstance(sublayer, Mlp):
            both = self.linear(x, sublayer.gate, sublayer.up)
            inner, last = self.gated(both, sublayer.activation), sublayer.down
        elif isinstance(sublayer, Injection):
            gate = self.linear(x, sublayer.gate)
            both = self.graph.op("Concat", gate, self._layer_inputs[number], axis=-1)
            inner, last = self.gated(both, sublayer.activation), sublayer.out
        elif isinstance(sublayer, ShortConvolution):
            inner, last = lower_convolution(self, x, number, sublayer), sublayer.out
        else:
            inner, last = lower_delta(self, x, number, sublayer), sublayer.out
        return self.linear(inner, last, residual=residual, factor=factor)

    def _attention(self, x: str, number: int, layer: Attention) -> str:
        """Emits queries, keys and values of the rows, and attention, [S, heads * head_dim]."""
        qkv = self.linear(x, *layer.linears[:-1])
        cos, sin = self._rotation(layer)
        pool, scales = self._pool(number, layer)
        eps = {"q_eps": layer.q_norm, "k_eps": layer.k_norm, "v_eps": layer.v_norm}
        source = "other" if layer.source is not None else "keys" if layer.v is None else "own"
        return self.graph.op(
            "TreeAttention",
            qkv,
            cos,
            sin,
            pool,
            scales,
            "write",
            "parent",
            "sequence",
            "context",
            "starts",
            "" if layer.q_norm is None else self.norm_weight(layer.q_norm),
            "" if layer.k_norm is None else self.norm_weight(layer.k_norm),
            "" if layer.sinks is None else self.vector(layer.sinks),
            self._evening(layer),
            domain=NATIVE,
            heads=layer.heads,
            kv_heads=layer.kv_heads,
            head_dim=layer.head_dim,
            scale=float(layer.scale),
            soft_cap=float(layer.softcap or 0.0),
            window=layer.window or 0,
            gated=int(layer.gated),
            norm_after_rope=int(layer.norm_after_rope),
            source=source,
            **{name: float(norm.eps) for name, norm in eps.items() if norm is not None},
        )

    def _evening(self, layer: Attention) -> str:
        """Declares what keys are multiplied by in a cache of 8 bits, [kv_heads, head_dim].

        Biases of keys, as Qwen2 has, may be hundreds of times the rest of a key, of which little
        would be left with one scale a row. The factors are powers of two, which round nothing, and
        equal for the two numbers that RoPE turns into one another.
        """
        source = layer
        if layer.source is not None:
            source = self._shared[layer.source]
        bias = None if source.k is None else source.k.bias
        if self.weights.precision.kv != "int8" or bias is None:
            return ""
        by_head = self.weights.tensors.read(bias).reshape(layer.kv_heads, 2, -1)
        size = np.sqrt((by_head.astype(np.float32) ** 2).mean(axis=1))
        factors = 2.0 ** -np.floor(np.log2(np.maximum(size / 2, 1.0)))
        return self.graph.constant(np.concatenate([factors, factors], axis=1), np.float32)

    def _rotation(self, layer: Attention) -> tuple[str, str]:
        if not layer.rope:
            return "", ""
        names = rope_inputs(layer.rope)
        if layer.rope not in self.ropes:
            self.ropes.append(layer.rope)
            for name in names:
                self.graph.input(name, FLOAT, ["S", layer.head_dim // 2])
        return names

    def _pool(self, number: int, layer: Attention) -> tuple[str, str]:
        """Declares what a layer's keys and values are kept in, or finds another layer's."""
        number = number if layer.source is None else layer.source
        kind = self.weights.precision.kv
        names = f"pool.{number}", f"scales.{number}" if kind == "int8" else ""
        if all(each.layer != number for each in self.pools):
            dim = -(-layer.head_dim // _LANES) * _LANES
            self.pools.append(PoolShape(number, layer.kv_heads, dim, layer.window))
            self.graph.input(names[0], _KV[kind], [2, layer.kv_heads, "C", dim])
            if names[1]:
                self.graph.input(names[1], FLOAT, [2, layer.kv_heads, "C"])
        return names

    def _emit_layer_inputs(self, inputs: LayerInputs, ids: str, hidden: str, count: int) -> None:
        g, size = self.graph, inputs.norm.size
        found = self.embedding(ids, inputs.table, inputs.scale)
        projected = self.linear(hidden, inputs.projection)
        projected = g.op("Reshape", projected, g.ints(0, -1, size))
        projected = g.op("Reshape", self.norm(projected, inputs.norm), g.ints(0, -1))
        both = g.op("Add", projected, found)
        self._layer_inputs = (
            [both]
            if count == 1
            else g.multi_op("Split", both, outputs=count, axis=1, num_outputs=count)
        )


def written_in_tiles(
    file: Path, precision: Precision, write: Callable[[DataFile], Native]
) -> Native | None:
    """Writes a native graph, if tiles can have the weights and the operators the model.

    Args:
        file: file of the weights to create.
        precision: formats of the model.
        write: writes graph and weights.

    Returns:
        None if there can be no graph; then there is no file.
    """
    if precision.block_size % BLOCK:
        return None
    data = DataFile(file)
    try:
        return write(data)
    except UnsupportedModelError as error:
        _log.info("%s: no graph for CPUs: %s", file.stem, error)
        file.unlink()
        return None
    finally:
        data.close()


def write_ids(folder: Path, name: str, ids: npt.NDArray[np.int64]) -> str:
    """Writes the tokens that a role's outputs stand for; see `Native.ids` for the result."""
    if np.array_equal(ids, np.arange(len(ids))):
        return ""
    (folder / f"{name}.ids").write_bytes(ids.astype("<i4").tobytes())
    return f"{name}.ids"
