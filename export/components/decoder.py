"""Lowers runs of a decoder's sublayers to stateless ONNX stages (docs/architecture.md, the graph).

A stage never appends to a cache. It reads the past as it stands, attends to it and to its own new
rows, and returns the new keys and values. Who may see what is the caller's, in `attention_bias`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from edgespec.bundle import Tensor
from edgespec.export.components.attention import AttentionForm, Heads
from edgespec.export.components.graph import GraphBuilder
from edgespec.export.formats.matrices import WeightFormat, vector
from edgespec.export.formats.weights import WeightStream
from edgespec.models import Attention, Decoder, Linear, Mlp, Norm

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
INT32, INT64 = TensorProto.INT32, TensorProto.INT64
CANDIDATES = 128  # of a draft's tokens; sampling noise can lift an unlikely one to the top
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


@dataclass(frozen=True)
class Span:
    """Which sublayers a stage runs, `start` included and `stop` not; see `bundle.Stage`."""

    start: int
    stop: int


@dataclass(frozen=True)
class _Rows:
    """What every attention needs: rotations [1, S, hd], and who sees what."""

    cos: str
    sin: str
    form: AttentionForm


class StageLowering:
    """Emits a run of a decoder's sublayers as one stage.

    Args:
        graph: receives the nodes.
        weights: streams the checkpoint's tensors into the role's data file.
        formats: the precisions.
        gated: every sublayer's contribution is multiplied by its entry of the input `gates`, to
            try which ones can be left out.
    """

    def __init__(
        self, graph: GraphBuilder, weights: WeightStream, formats: StageFormats, gated: bool = False
    ) -> None:
        self._graph = graph
        self._weights = weights
        self._formats = formats
        self._gated = gated
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def emit(self, decoder: Decoder, span: Span) -> None:
        """Fill the graph; `inputs` and `outputs` then list the boundary tensors."""
        sublayers = [sublayer for layer in decoder.layers for sublayer in layer]
        mine = list(enumerate(sublayers))[span.start : span.stop]
        hidden = self._emit_hidden(decoder, first=span.start == 0)
        attends = any(isinstance(sublayer, Attention) for _, sublayer in mine)
        rows = self._emit_rows(decoder.layers[0][0]) if attends else None
        gates = self._input("gates", FLOAT, len(sublayers)) if self._gated else None
        new_kv: list[str] = []
        for index, sublayer in mine:
            if isinstance(sublayer, Attention):
                assert rows is not None
                update = self._attention(hidden, index // 2, sublayer, rows, new_kv)
            else:
                update = self._mlp(hidden, sublayer)
            hidden = self._residual(hidden, update, index, gates)
        if span.stop > len(sublayers):
            self._emit_head(hidden, decoder)
        else:
            self._output("next_hidden", hidden, FLOAT, "S", decoder.hidden_size)
        if new_kv:
            self._emit_new_kv(new_kv, decoder.layers[0][0])

    def _emit_hidden(self, decoder: Decoder, first: bool) -> str:
        if not first:
            return self._input("hidden", FLOAT, "S", decoder.hidden_size)
        ids = self._input("input_ids", INT64, "S")
        embed = self._formats.vocabulary.embedding
        return embed(self._graph, self._weights, ids, decoder.embedding)

    def _residual(self, hidden: str, update: str, index: int, gates: str | None) -> str:
        g = self._graph
        if gates is not None:
            gate = g.op("Slice", gates, g.ints(index), g.ints(index + 1), g.ints(0))
            update = g.op("Mul", update, gate)
        return g.op("Add", hidden, update)

    def _emit_head(self, hidden: str, decoder: Decoder) -> None:
        g = self._graph
        # Only the rows that are asked for pay for the vocabulary.
        chosen = g.op("Gather", hidden, self._input("logit_rows", INT64, "R"), axis=0)
        normed = self._norm(chosen, decoder.norm)
        logits = self._formats.vocabulary.linear(g, self._weights, normed, decoder.lm_head)
        if self._formats.candidates:
            self._emit_candidates(logits, decoder.vocab_size)
        else:
            self._output("logits", logits, FLOAT, "R", decoder.vocab_size)

    def _emit_new_kv(self, new_kv: list[str], attention: Attention) -> None:
        g = self._graph
        shape = (len(new_kv) // 2, 2, attention.kv_heads, "S", attention.head_dim)
        stacked = g.op("Concat", *new_kv, axis=0)
        stacked = g.op("Reshape", stacked, g.ints(*(-1 if d == "S" else int(d) for d in shape)))
        self._output("new_kv", stacked, self._formats.kv_dtype, *shape)

    def _emit_rows(self, attention: Attention) -> _Rows:
        g = self._graph
        cos = self._input("rope_cos", FLOAT, "S", attention.head_dim)
        sin = self._input("rope_sin", FLOAT, "S", attention.head_dim)
        return _Rows(
            g.op("Unsqueeze", cos, g.ints(0)),
            g.op("Unsqueeze", sin, g.ints(0)),
            self._formats.attention(g, self._input, Heads.of(attention)),
        )

    def _emit_candidates(self, logits: str, vocab_size: int) -> None:
        """All that a draft needs of its logits, so that no [R, V] leaves the engine."""
        g, size = self._graph, self._formats.candidates
        if size < vocab_size:
            logits = g.op("Slice", logits, g.ints(0), g.ints(size), g.ints(1))
        count = min(CANDIDATES, size)
        top, ids = g.multi_op("TopK", logits, g.ints(count), outputs=2, axis=-1, sorted=1)
        peak = g.op("Slice", top, g.ints(0), g.ints(1), g.ints(1))
        total = g.op("ReduceSum", g.op("Exp", g.op("Sub", logits, peak)), g.ints(1), keepdims=1)
        normalizer = g.op("Squeeze", g.op("Add", g.op("Log", total), peak), g.ints(1))
        self._output("top_ids", ids, INT64, "R", count)
        self._output("top_logits", top, FLOAT, "R", count)
        self._output("logsumexp", normalizer, FLOAT, "R")

    def _attention(
        self, hidden: str, index: int, layer: Attention, rows: _Rows, new_kv: list[str]
    ) -> str:
        """Attention to the past as it stands and to the new rows: nothing copies the cache."""
        g, kv, hd = self._graph, layer.kv_heads, layer.head_dim
        q, k, v = self._heads(self._norm(hidden, layer.norm), layer, rows)
        new_k, new_v = self._store(k, new_kv), self._store(v, new_kv)
        past_k = self._past(index, "key", layer)
        past_v = self._past(index, "value", layer)

        q = g.op("Mul", q, g.constant(hd**-0.5, np.float32))
        q = g.op("Reshape", q, g.ints(kv, -1, hd))  # [KV, G * S, hd]: a group shares its keys
        mixed = rows.form.mix(q, (past_k, past_v), (new_k, new_v))
        mixed = g.op("Reshape", mixed, g.ints(layer.heads, -1, hd))
        mixed = g.op("Transpose", mixed, perm=[1, 0, 2])
        mixed = g.op("Reshape", mixed, g.ints(-1, layer.heads * hd))
        return self._linear(mixed, layer.o)

    def _mlp(self, hidden: str, layer: Mlp) -> str:
        g = self._graph
        x = self._norm(hidden, layer.norm)
        gate = self._linear(x, layer.gate)
        gate = g.op("Mul", gate, g.op("Sigmoid", gate))
        return self._linear(g.op("Mul", gate, self._linear(x, layer.up)), layer.down)

    def _heads(self, x: str, layer: Attention, rows: _Rows) -> tuple[str, str, str]:
        """Queries [H, S, hd], keys and values [KV, S, hd], the first two after RoPE.

        One product makes them all. They part before heads come first: as parts of one buffer
        OpenVINO would keep them together until the end, with more scores beside them.
        """
        g, heads, kv, hd = self._graph, layer.heads, layer.kv_heads, layer.head_dim
        x = self._linear(x, layer.q, layer.k, layer.v)
        x = g.op("Reshape", x, g.ints(-1, heads + 2 * kv, hd))
        q, k, v = g.multi_op("Split", x, g.ints(heads, kv, kv), outputs=3, axis=1)
        q, k = self._turn(q, layer.q_norm, rows), self._turn(k, layer.k_norm, rows)
        return q, k, g.op("Transpose", v, perm=[1, 0, 2])

    def _turn(self, x: str, norm: Norm | None, rows: _Rows) -> str:
        """[S, heads, hd], with its norm if it has one, after RoPE: [heads, S, hd].

        The host gives sin with its first half negated, so that a rotation is x * cos + swap(x) *
        sin, where swap exchanges the halves.
        """
        g = self._graph
        x = g.op("Transpose", self._norm(x, norm) if norm else x, perm=[1, 0, 2])
        first, second = g.multi_op("Split", x, outputs=2, axis=-1, num_outputs=2)
        swapped = g.op("Concat", second, first, axis=-1)
        return g.op("Add", g.op("Mul", x, rows.cos), g.op("Mul", swapped, rows.sin))

    def _store(self, value: str, new_kv: list[str]) -> str:
        """Hand [KV, S, hd] out in the cache's precision; attend to what the cache will hold."""
        if self._formats.kv_dtype == FLOAT:
            new_kv.append(value)
            return value
        # Rounded to half precision by arithmetic (Veltkamp, 1968): OpenVINO drops a pair of casts.
        g = self._graph
        scaled = g.op("Mul", value, g.constant(2**13 + 1, np.float32))
        rounded = g.op("Sub", scaled, g.op("Sub", scaled, value))
        # The smallest numbers of half precision are 2 ** -24 apart, as those around 0.75 are here.
        anchor = g.constant(0.75, np.float32)
        rounded = g.op("Sub", anchor, g.op("Sub", anchor, rounded))
        new_kv.append(g.op("Cast", rounded, to=HALF))
        return rounded

    def _past(self, index: int, part: str, layer: Attention) -> str:
        dtype = self._formats.kv_dtype
        past = self._input(f"past.{index}.{part}", dtype, layer.kv_heads, "C", layer.head_dim)
        return past if dtype == FLOAT else self._graph.op("Cast", past, to=FLOAT)

    def _norm(self, x: str, norm: Norm) -> str:
        weight = vector(self._graph, self._weights, norm.weight)
        return self._graph.op("RMSNormalization", x, weight, axis=-1, epsilon=norm.eps)

    def _linear(self, x: str, *layers: Linear) -> str:
        return self._formats.layers.linear(self._graph, self._weights, x, *layers)

    def _input(self, name: str, dtype: int, *shape: int | str) -> str:
        self.inputs.append(Tensor(name, _DTYPES[dtype], tuple(map(str, shape))))
        return self._graph.input(name, dtype, shape)

    def _output(self, name: str, value: str, dtype: int, *shape: int | str) -> None:
        self.outputs.append(Tensor(name, _DTYPES[dtype], tuple(map(str, shape))))
        self._graph.output(name, value, dtype, shape)
