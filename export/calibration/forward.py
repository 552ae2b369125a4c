"""Runs texts through a decoder in float32, one sublayer at a time, for calibration.

What runs is the sublayer that is exported, with the operators of the native graph, but with the
checkpoint's own matrices. Only those of one sublayer, or one expert, are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgespec.bundle import PART, PLACE, SIGHT
from edgespec.bundle.sublayers import rope_inputs
from edgespec.errors import CheckpointError
from edgespec.export.arrays import Array, Floats
from edgespec.export.calibration.graph import LAYER_INPUT, RESULT, STREAM, FloatGraph
from edgespec.export.formats.checked import check_range, read_finite
from edgespec.export.formats.products import in_threads
from edgespec.models import Checkpoint, Linear, Mlp, Sublayer
from edgespec.models.layers.decoder import TokenRows
from edgespec.models.layers.sublayers import PlainMlp

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Runs a graph: inputs by name to outputs by name. Several threads call it at a time."""

Open = Callable[[bytes], Run]
"""Makes an ONNX model with our operators ready to run, each time on the thread that calls it."""

Rows = slice | npt.NDArray[np.int64]
"""Numbers of rows of the residual stream."""

ALL = slice(None)
_EXPERT_ROWS = 256  # that are computed at a time


@dataclass(frozen=True)
class LayerRun:
    """A part of a decoder that is ready to run.

    Attributes:
        number: number of its layer.
        run: see `Run`.
        inputs: names of its inputs.
        weights: its matrices by name, [N, K] float32.
        reads: the matrices by the output that has what they read.
        held: shapes of what it keeps of a text, by name.
    """

    number: int
    run: Run
    inputs: Sequence[str]
    weights: Mapping[str, Floats]
    reads: Mapping[str, Sequence[Linear]]
    held: Mapping[str, tuple[int, ...]]


class Forward:
    """Runs texts of one length through a decoder.

    Args:
        checkpoint: the model.
        texts: [B, T] token ids.
        opened: see `Open`.

    Attributes:
        stream: [B * T, hidden_size] float32, the residual stream, which `advance` replaces.
        texts: the rows of each text.
    """

    def __init__(self, checkpoint: Checkpoint, texts: npt.NDArray[np.int64], opened: Open) -> None:
        self._path = checkpoint.path
        self._tensors = checkpoint.tensors
        self._decoder = checkpoint.decoder
        self._open = opened
        self._length = texts.shape[1]
        starts = range(0, texts.size, self._length)
        self.texts: Sequence[slice] = [slice(start, start + self._length) for start in starts]
        self._rows = self._row_inputs()
        self._shared: dict[tuple[str, int], Floats] = {}
        ids, places = np.unique(texts, return_inverse=True)
        self._places = places.ravel()
        self._layer_inputs: Mapping[str, Array] = self._begun(ids)
        self.stream: Floats = self._layer_inputs[RESULT][self._places]
        if (rows := checkpoint.decoder.token_rows) is not None:
            self.stream = self._entered(rows)

    def layers(self) -> Iterator[tuple[int, tuple[Sublayer, ...]]]:
        """Yields number and sublayers of each layer, to be computed before those of the next."""
        for number, sublayers in enumerate(self._decoder.layers):
            yield number, sublayers
            if self._decoder.layer_factors:
                self.stream *= self._tensors.read(self._decoder.layer_factors[number])

    def sublayer(self, number: int, sublayer: Sublayer) -> LayerRun:
        """Returns a sublayer of a layer, which adds what it gives to the stream.

        Raises:
            CheckpointError: if a matrix contains infinity or NaN.
            ExportError: if it contains numbers that half precision cannot represent.
        """
        graph = FloatGraph(self._tensors)
        graph.sublayer(number, sublayer)
        return self._part(graph, number)

    def expert(self, expert: Mlp | PlainMlp) -> LayerRun:
        """Returns an expert, see `sublayer`."""
        graph = FloatGraph(self._tensors)
        graph.expert(expert)
        return self._part(graph)

    def compute(
        self,
        part: LayerRun,
        rows: Sequence[Rows],
        inputs: Mapping[str, Floats],
        replaced: Mapping[str, Floats] | None = None,
    ) -> dict[str, Array]:
        """Runs a part.

        Args:
            part: the part.
            rows: rows of each run; whole texts if the part has attention or states.
            inputs: further inputs of all rows, of which each run reads its own.
            replaced: matrices that take the places of the part's own ones.

        Returns:
            Its outputs, those of all runs one behind the other.
        """

        def run(own: Rows) -> dict[str, Array]:
            feeds = {**self._rows, **part.weights, **(replaced or {})}
            feeds |= {name: each[own] for name, each in inputs.items()}
            if LAYER_INPUT in part.inputs:
                of_ids = self._layer_inputs[f"{LAYER_INPUT}.{part.number}"]
                feeds[LAYER_INPUT] = of_ids[self._places[own]]
            if part.held:
                assert isinstance(own, slice)
                feeds |= self._held(part, own.start, not replaced)
            return dict(part.run({name: feeds[name] for name in part.inputs}))

        found = in_threads(run, rows)
        return {name: np.concatenate([each.pop(name) for each in found]) for name in [*found[0]]}

    def compute_expert(
        self, part: LayerRun, rows: npt.NDArray[np.int64], x: Floats
    ) -> dict[str, Array]:
        """Runs an expert for some rows of x [B * T, width]."""
        count = max(1, -(-len(rows) // _EXPERT_ROWS))
        return self.compute(part, np.array_split(rows, count), {STREAM: x})

    def advance(self, result: Floats) -> None:
        """Makes this the residual stream.

        Raises:
            CheckpointError: if it contains infinity or NaN.
        """
        if not np.isfinite(result).all():
            raise CheckpointError(
                f"{self._path} computes infinity or NaN from plain text: download the "
                "checkpoint again, or export it without calibration"
            )
        self.stream = result

    def last(self) -> Floats:
        """Returns the stream behind the decoder's last norm, [B * T, hidden_size]."""
        graph = FloatGraph(self._tensors)
        graph.last_norm(self._decoder)
        found: Floats = self.compute(self._part(graph), self.texts, {STREAM: self.stream})[RESULT]
        return found

    def _begun(self, ids: npt.NDArray[np.int64]) -> dict[str, Array]:
        """Computes the stream and the inputs of layers by token, [ids, size] each."""
        graph = FloatGraph(self._tensors)
        graph.begin(self._decoder)
        part = self._part(graph)
        tables = [each for each in part.inputs if each not in part.weights]
        rows = {name: np.concatenate([self._row(name, n) for n in ids.tolist()]) for name in tables}
        return self.compute(part, [ALL], rows)

    def _entered(self, rows: TokenRows) -> Floats:
        """Computes what enters the first layer; no text of calibration is a pair."""
        graph = FloatGraph(self._tensors)
        graph.token_rows(rows)
        tables = dict[str, Floats]()
        if rows.positions:
            last = rows.first + self._length
            own = read_finite(self._tensors, rows.positions, rows.first, last)
            tables[rows.positions] = np.tile(own, (len(self.texts), 1))
        if rows.segments:
            tables[rows.segments] = self._row(rows.segments, 0).repeat(len(self.stream), 0)
        part = self._part(graph)
        found: Floats = self.compute(part, self.texts, {STREAM: self.stream, **tables})[RESULT]
        return found

    def _row(self, table: str, number: int) -> Floats:
        """Reads a token's row of a table; tokens that one has no row of have its first."""
        number = number if number < self._tensors.shape(table)[0] else 0
        return read_finite(self._tensors, table, number, number + 1)

    def _part(self, graph: FloatGraph, number: int = 0) -> LayerRun:
        layers = [layer for each in graph.reads.values() for layer in each]
        weights = {}
        for name, rows in ((layer.weight, layer.out_features) for layer in layers):
            weights[name] = read_finite(self._tensors, name, 0, rows)
            check_range(self._tensors, name, weights[name])
        length = self._length
        held: dict[str, tuple[int, ...]] = {
            f"pool.{each.layer}": (2, each.kv_heads, length, each.dim) for each in graph.pools
        }
        for state in graph.recurrent:
            held[f"rows.{state.layer}"] = length, state.width
            if state.state:
                held[f"states.{state.layer}"] = 1, *state.state
        run = self._open(graph.graph.content())
        return LayerRun(number, run, graph.graph.inputs, weights, graph.reads, held)

    def _held(self, part: LayerRun, text: int, original: bool) -> dict[str, Floats]:
        """Returns room for what a part keeps of a text, or what another layer has kept there."""
        found = {}
        for name, shape in part.held.items():
            if name == f"pool.{part.number}" or not name.startswith("pool."):
                found[name] = np.zeros(shape, np.float32)
                if original and part.number in self._decoder.shared:
                    self._shared[name, text] = found[name]
            else:
                found[name] = self._shared[name, text]
        return found

    def _row_inputs(self) -> dict[str, Array]:
        """Returns the inputs that are the same for each text, whatever layer reads them."""
        every = np.arange(self._length, dtype=np.int32)
        none = np.zeros(0, np.int32)
        begin = np.zeros(2, np.int32)
        rows: dict[str, Array] = {
            "write": every,
            "parent": every - 1,
            "sequence": np.zeros_like(every),
            "context": none,
            "starts": begin,
            SIGHT: every[::-1].copy(),
            PLACE: every.astype(np.int64),
            PART: np.zeros(len(every), np.int64),
            "recent_write": every,
            "recent": none,
            "recent_starts": begin,
            # No state is read or written, and no row of the text is in doubt.
            "carry": np.array([[-1, -1, 0, self._length]], np.int32),
        }
        for table, rope in self._decoder.ropes.items():
            angles = np.outer(every, rope.inv_freq.astype(np.float64))
            scales = rope.scales
            if rope.growth is not None:
                scales = scales * np.array(rope.growth.factors(len(every)))[:, None]
            for name, turn in zip(rope_inputs(table), (np.cos, np.sin), strict=True):
                rows[name] = (scales * turn(angles)).astype(np.float32)
        return rows
