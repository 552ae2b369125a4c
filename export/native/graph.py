"""Emits a decoder as the native graph: about eight nodes a layer, one graph for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from edgespec.bundle import LAST_HIDDEN, LOGITS, PICTURED, PICTURES, SIGHT, Native
from edgespec.export.graph_builder import NATIVE, GraphBuilder, entering
from edgespec.export.native.altup import gathered, spread
from edgespec.export.native.experts import emit_experts, products
from edgespec.export.native.layers import FLOAT, LayerGraph
from edgespec.export.native.weights import FusedMatrix, TileWeights
from edgespec.models import Decoder, Linear, Moe
from edgespec.models.layers.decoder import Scorer
from edgespec.models.vision.gemma4 import PatchTower
from edgespec.models.vision.reading import AnyTower


class NativeGraphBuilder(LayerGraph):
    """The graph while it is being built; its matrices are tiles.

    Args:
        weights: writes the model's matrices.
        name: name of the graph.
    """

    def __init__(self, weights: TileWeights, name: str) -> None:
        graph = GraphBuilder(name, weights.data.name)
        super().__init__(graph, weights.tensors, weights.storage.precision.kv)
        self.weights = weights
        self._heads: dict[int, str] = {}
        self._further: list[str] = []  # rows that pictures add behind the first layers

    def build(self, decoder: Decoder, tower: AnyTower | None = None) -> None:
        """Emits all nodes of a decoder.

        Args:
            decoder: the description.
            tower: what makes rows that may be given in place of embeddings, see `PICTURED`; None:
                there are none.
        """
        g = self.graph
        ids = self.inputs()
        hidden = begin = self.embedding(ids, decoder.embedding, decoder.embedding_scale)
        if decoder.altup is not None:
            hidden = spread(self, hidden, decoder.altup)
        if decoder.token_rows is not None:
            hidden = self.entered(hidden, decoder.token_rows)
        hidden = g.rename(hidden, entering(0))
        if tower is not None:
            hidden, ids = self._pictured(tower, hidden, ids, decoder.hidden_size)
        if decoder.layer_inputs is not None:
            begin = hidden if decoder.altup is None else begin
            count = decoder.layer_inputs.shape[0]
            if count < decoder.vocab_size:  # what follows stands for no text
                within = g.op("Less", ids, g.constant(count, np.int64))
                ids = g.op("Where", within, ids, g.constant(0, np.int64))
            self.emit_layer_inputs(decoder.layer_inputs, ids, begin, len(decoder.layers))
        hidden = self.layers(decoder, hidden)
        hidden = g.op("Gather", hidden, "logit_rows", axis=0)
        if decoder.altup is not None:
            hidden = gathered(self, hidden, decoder.altup)
        self._emit_result(self.ended(hidden, decoder), decoder)

    def _pictured(
        self, tower: AnyTower, hidden: str, ids: str, hidden_size: int
    ) -> tuple[str, str]:
        """Emits rows of pictures in their places; returns rows and tokens with these."""
        g = self.graph
        if tower.together:
            self.sight = g.input(SIGHT, TensorProto.INT32, ["S"])
        pictured = g.input(PICTURED, TensorProto.BOOL, ["S"])
        count = 1 if tower.grid is None else 1 + tower.grid.layers
        which = g.op("Unsqueeze", pictured, g.ints(1))
        read = [g.input(PICTURES, FLOAT, ["S", count * hidden_size])]
        if count > 1:
            read = g.multi_op("Split", *read, outputs=count, axis=1, num_outputs=count)
        hidden = g.op("Where", which, read[0], hidden)
        self._further = read[1:]
        if isinstance(tower, PatchTower):
            self.sight_in_windows = True
            ids = g.op("Where", pictured, g.constant(tower.blank, np.int64), ids)
        return hidden, ids

    def _emit_result(self, hidden: str, decoder: Decoder) -> None:
        """Emits scores, rows or logits of the rows behind the last norm."""
        if decoder.scorer is not None:
            scores = self._scored(hidden, decoder.scorer)
            self.graph.output(LOGITS, scores, FLOAT, ["R", decoder.scorer.out.out_features])
            return
        if decoder.embeds:
            self.graph.output(LAST_HIDDEN, hidden, FLOAT, ["R", decoder.width])
            return
        head = decoder.lm_head
        matrix = self.weights.matrix(head.weight)
        cap = decoder.logit_softcap or 0.0
        logits = self.product(hidden, [matrix], self.biases([head]), soft_cap=cap)
        self.graph.output(LOGITS, logits, FLOAT, ["R", head.out_features])

    def _scored(self, hidden: str, scorer: Scorer) -> str:
        """Emits scores of rows, whose few matrices stay as they are, [R, scores]."""
        rows = hidden
        if scorer.of_mean:
            hidden = self.graph.op("ReduceMean", rows, self.graph.ints(0))
        if scorer.dense is not None:
            dense = self.linear(hidden, scorer.dense, exact=True)
            hidden = self.norm(self.activated(dense, scorer.activation), scorer.norm)
        scores = self.linear(hidden, scorer.out, exact=True)
        if not scorer.of_mean:
            return scores
        count = self.graph.op("Shape", rows, start=0, end=1)
        shape = self.graph.op("Concat", count, self.graph.ints(1), axis=0)
        return self.graph.op("Expand", scores, shape)

    def layers(self, decoder: Decoder, hidden: str) -> str:
        """Emits the layers of a decoder; returns the rows behind them, [S, hidden]."""
        for number, layer in enumerate(decoder.layers):
            for sublayer in layer:
                hidden = self.added(hidden, number, sublayer)
            if decoder.layer_factors:
                factor = self.vector(decoder.layer_factors[number])
                hidden = self.graph.op("Mul", hidden, factor)
            if number < len(self._further):
                hidden = self.graph.op("Sum", hidden, self._further[number])
            hidden = self.graph.rename(hidden, entering(number + 1))
        return hidden

    def inputs(self) -> str:
        """Declares the inputs that all graphs have; returns the tokens' name."""
        self.row_inputs()
        self.graph.input("logit_rows", TensorProto.INT64, ["R"])
        return self.graph.input("input_ids", TensorProto.INT64, ["S"])

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

    def linear(
        self, x: str, *layers: Linear, residual: str = "", factor: float = 1.0, exact: bool = False
    ) -> str:
        """See `LayerGraph`."""
        matrices = [self.weights.matrix(layer.weight, exact=exact) for layer in layers]
        return self.product(x, matrices, self.biases(layers), residual, factor)

    def product(
        self,
        x: str,
        matrices: Sequence[FusedMatrix],
        bias: str = "",
        residual: str = "",
        factor: float = 1.0,
        soft_cap: float = 0.0,
    ) -> str:
        """Emits a `BlockLinear`; the product is multiplied, capped and added to."""
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

    def tiles(self, matrix: FusedMatrix) -> str:
        """Declares the tiles of a matrix."""
        name = matrix.names[0]
        others = len(matrix.names) - 1
        name += f"+{others}" if others else ""
        return self.graph.external(
            name, TensorProto.UINT8, [matrix.nbytes], matrix.offset, matrix.nbytes
        )

    def embedding(self, ids: str, name: str, scale: float = 1.0, exact: bool = False) -> str:
        """See `LayerGraph`."""
        matrix = self.weights.matrix(name, exact=exact)
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

    def by_head(self, x: str, layers: Sequence[Linear]) -> str:
        """See `LayerGraph`: the heads' layers are experts, of which each pair has its own."""
        g = self.graph
        heads = len(layers)
        if heads not in self._heads:  # [S * heads, 1], the numbers of heads again and again
            shape = g.op("Concat", g.op("Shape", "input_ids"), g.ints(1), axis=0)
            every = g.op("Expand", g.ints(*range(heads)), shape)
            self._heads[heads] = g.op("Reshape", every, g.ints(-1, 1))
        x = g.op("Reshape", x, g.ints(-1, layers[0].in_features))
        y = products(self, x, self._heads[heads], [layers])
        return g.op("Reshape", y, g.ints(-1, heads * layers[0].out_features))

    def experts(self, x: str, chosen: str, shares: str, layer: Moe) -> str:
        """See `LayerGraph`."""
        return emit_experts(self, x, chosen, shares, layer)


def write_ids(folder: Path, name: str, ids: npt.NDArray[np.int64]) -> str:
    """Writes the tokens that a draft's logits stand for; see `Native.ids` for the result."""
    if np.array_equal(ids, np.arange(len(ids))):
        return ""
    (folder / f"{name}.ids").write_bytes(ids.astype("<i4").tobytes())
    return f"{name}.ids"
