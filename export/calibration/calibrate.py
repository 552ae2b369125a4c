"""Calibrates quantization: runs a model on texts and rounds its matrices for these inputs.

It also measures how much each matrix damages the model's computation if it is stored in 4 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from edgespec.export.calibration.forward import Forward, Routed, Rows, Weights
from edgespec.export.formats.blocks import Floats, dequantize_rows, quantize_rows
from edgespec.export.formats.gptq import BITS, Columns, quantize_with_feedback
from edgespec.export.formats.products import one_blas_thread
from edgespec.export.formats.rounded_matrices import RoundedMatrices
from edgespec.models import Attention, Checkpoint, Decoder, Injection, Linear, Mlp, MlpAndMoe, Moe
from edgespec.models.layers import Recurrent

# The residual stream of a text's first tokens is unlike all others: no damage is measured there.
_WARM_UP = 8

Progress = Callable[[int, int], None]
"""Called with the number of layers done and the total number."""


@dataclass(frozen=True)
class Calibration:
    """The results of calibrating a model.

    Attributes:
        damage: damage of each matrix of the layers, by name: how much its sublayer's output changes
            if this matrix alone has 4 bits, as the mean over tokens of the squared change divided
            by the square of the residual stream. It is 0 for matrices that are not rounded.
        sizes: number of weights of each of these matrices.
    """

    damage: Mapping[str, float]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Texts:
    """Token ids of calibration texts, all of the same length.

    Attributes:
        fitted: texts for whose inputs matrices are rounded.
        judged: texts on which damage is measured; on `fitted` it would look too small.
    """

    fitted: Sequence[Sequence[int]]
    judged: Sequence[Sequence[int]]


Calibrate = Callable[[Checkpoint, int, RoundedMatrices], Calibration | None]
"""Calibrates a role, given its checkpoint, the block size and the store for rounded matrices.
Returns None if the texts are not suitable for the model."""


def calibrate(
    checkpoint: Checkpoint,
    texts: Texts,
    block_size: int,
    rounded: RoundedMatrices,
    progress: Progress = lambda done, total: None,
) -> Calibration:
    """Runs a model on texts, layer by layer, and rounds its matrices to 4 bits for their inputs.

    The inputs of all layers are those of the original model. Damage is relative to the residual
    stream, so that the matrices of one model are comparable: every sublayer normalizes it.

    Args:
        checkpoint: the model.
        texts: the calibration texts.
        block_size: number of weights that share a scale.
        rounded: receives the rounded matrices.
        progress: called after each layer.

    Raises:
        CheckpointError: if the checkpoint contains or computes infinity or NaN.
        ExportError: if it contains numbers that half precision cannot represent.
    """
    length = len(texts.fitted[0])
    fitted, judged = (len(part) * length for part in (texts.fitted, texts.judged))
    judge = _Judge(slice(0, fitted), slice(fitted, fitted + judged), length, block_size, rounded)
    with one_blas_thread():
        forward = Forward(checkpoint, np.array([*texts.fitted, *texts.judged], np.int64))
        _run(forward, judge, len(checkpoint.decoder.layers), progress)
    return Calibration(judge.damage, judge.sizes)


def last_rows(
    checkpoint: Checkpoint,
    texts: Sequence[Sequence[int]],
    progress: Progress = lambda done, total: None,
) -> Floats:
    """Runs a model on texts, and computes the inputs of its output projection.

    Args:
        checkpoint: the model.
        texts: token ids, all of the same length.
        progress: called after each layer.

    Returns:
        [texts * length, hidden_size] float32.

    Raises:
        CheckpointError: if the checkpoint contains or computes infinity or NaN.
        ExportError: if it contains numbers that half precision cannot represent.
    """
    decoder = checkpoint.decoder
    with one_blas_thread():
        forward = Forward(checkpoint, np.array(texts, np.int64))
        _run(forward, None, len(decoder.layers), progress)
        return forward.normed(forward.hidden, decoder.norm)


def _run(forward: Forward, judge: _Judge | None, layers: int, progress: Progress) -> None:
    """Computes all layers; with a judge, rounds their matrices."""
    for done, layer in enumerate(forward.layers(), 1):
        for sublayer in layer:
            if isinstance(sublayer, Moe):
                _read_experts(forward, sublayer, judge)
            elif isinstance(sublayer, MlpAndMoe):
                _read_both(forward, sublayer, judge)
            else:
                _read(forward, sublayer, judge)
        progress(done, layers)


def to_widen(calibration: Calibration, damage: float, share: float) -> frozenset[str]:
    """Returns the matrices that need 8 bits most: those with the most damage per weight in 4 bits.

    Args:
        calibration: the model's calibration.
        damage: maximum total damage of the other matrices; no more are chosen once it is reached.
        share: maximum share of all weights that get 8 bits.
    """
    left = sum(calibration.damage.values())
    room = share * sum(calibration.sizes.values())
    chosen: set[str] = set()
    sizes = calibration.sizes
    for name, own in sorted(calibration.damage.items(), key=lambda item: -item[1] / sizes[item[0]]):
        if left <= damage:
            break
        if sizes[name] <= room:
            chosen.add(name)
            room -= sizes[name]
            left -= own
    return frozenset(chosen)


def widened_by_rule(decoder: Decoder) -> frozenset[str]:
    """Returns the matrices that get 8 bits without a calibration: those of keys and values.

    With grouped heads, they are a hundredth of the weights and cause a third of the damage.
    """
    own = (layer for each in decoder.attentions for layer in (each.k, each.v))
    return frozenset(layer.weight for layer in own if layer is not None)


class _Judge:
    """Rounds matrices and measures the damage.

    Args:
        fitted: rows for which matrices are rounded.
        judged: rows on which damage is measured, except for the first ones of each text.
        length: number of rows of a text.
        block_size: number of weights that share a scale.
        rounded: receives the rounded matrices.

    Attributes:
        damage, sizes: see `Calibration`.
        judged: the rows that `round` gives to its `compute`.
    """

    def __init__(
        self,
        fitted: slice,
        judged: slice,
        length: int,
        block_size: int,
        rounded: RoundedMatrices,
    ) -> None:
        self._slices = fitted, judged
        self._fitted: Rows = fitted
        self.judged: Rows = judged
        rows = np.arange(judged.stop - judged.start)
        self._counts = rows % length >= min(_WARM_UP, length - 1)
        self._tokens = self._counts.sum()
        self._block_size, self._rounded = block_size, rounded
        self.damage: dict[str, float] = {}
        self.sizes: dict[str, int] = {}

    def among(self, rows: npt.NDArray[np.int64]) -> _Judge:
        """Returns a judge of matrices that read only these rows, ascending; the rest are as now."""
        fitted, judged = self._slices
        own = copy(self)
        own._fitted = np.flatnonzero((fitted.start <= rows) & (rows < fitted.stop))
        own.judged = np.flatnonzero((judged.start <= rows) & (rows < judged.stop))
        own._counts = self._counts[rows[own.judged] - judged.start]
        return own

    def round(
        self,
        x: Floats,
        layers: Sequence[Linear],
        weights: Weights,
        compute: Callable[[Floats, Weights], Floats],
        stream: Floats,
    ) -> None:
        """Rounds the matrices of layers that have the same input.

        Args:
            x: [rows, K], the input.
            layers: the layers.
            weights: all matrices of the sublayer.
            compute: computes the sublayer's output from the input and the matrices.
            stream: [rows, hidden_size], the residual stream after the sublayer.
        """
        for layer in layers:
            self.damage[layer.weight], self.sizes[layer.weight] = 0.0, weights[layer.weight].size
        layers = [layer for layer in layers if self._rounded.wants(layer.weight)]
        if not layers:
            return
        read = x[self._fitted]
        columns = Columns(read, self._block_size) if len(read) else None
        few = x[self.judged]
        square = np.square(stream[self.judged]).sum(axis=1)
        square = np.maximum(square, np.finfo(np.float32).tiny)
        wanted = compute(few, weights)
        for layer in layers:
            name, weight = layer.weight, weights[layer.weight]
            found = (
                quantize_rows(weight, BITS, self._block_size)
                if columns is None
                else quantize_with_feedback(weight, columns)
            )
            self._rounded.keep(name, found)
            others = {**weights, name: dequantize_rows(found, BITS)[:, : layer.in_features]}
            change = np.square(compute(few, others) - wanted).sum(axis=1)
            self.damage[name] = float((change / square)[self._counts].sum() / self._tokens)


def _read_experts(forward: Forward, layer: Moe, judge: _Judge | None) -> None:
    """Computes a mixture of experts and adds its output, then rounds each expert's matrices.

    An expert is rounded by the rows that choose it; one that none chooses, like without a text.
    """
    x = forward.normed(forward.hidden, layer.norm)
    routed = forward.routed(layer, x)
    found = forward.mixture(routed, x)
    forward.add(forward.normed(found, layer.post_norm))
    if judge is None:
        return

    def finished(change: Floats, rows: Rows) -> Floats:
        return forward.normed(found[rows] + change, layer.post_norm)

    for each in routed:
        _round_expert(forward, each, x, judge.among(each.rows), finished)


def _read_both(forward: Forward, layer: MlpAndMoe, judge: _Judge | None) -> None:
    """Computes an MLP and a mixture beside it, adds their output, and rounds their matrices."""
    mlp, moe, stream = layer.mlp, layer.moe, forward.hidden
    weights, x = forward.weights(*mlp.linears), forward.normed(stream, mlp.norm)
    mixed, read = forward.mixed(mlp, x, weights), forward.normed(stream, moe.norm)
    dense, routed = forward.contribution(mlp, mixed, weights), forward.routed(moe, read)
    found = forward.mixture(routed, read)
    sparse = forward.normed(found, moe.post_norm)
    forward.add(forward.normed(dense + sparse, layer.post_norm))
    if judge is None:
        return

    def projection(mixed: Floats, weights: Weights) -> Floats:
        both = forward.contribution(mlp, mixed, weights) + sparse[judge.judged]
        return forward.normed(both, layer.post_norm)

    def contribution(x: Floats, weights: Weights) -> Floats:
        return projection(forward.mixed(mlp, x, weights), weights)

    def finished(change: Floats, rows: Rows) -> Floats:
        both = dense[rows] + forward.normed(found[rows] + change, moe.post_norm)
        return forward.normed(both, layer.post_norm)

    judge.round(x, (mlp.gate, mlp.up), weights, contribution, stream)
    judge.round(mixed, (mlp.down,), weights, projection, stream)
    for each in routed:
        _round_expert(forward, each, read, judge.among(each.rows), finished)


def _round_expert(
    forward: Forward,
    routed: Routed,
    inputs: Floats,
    judge: _Judge,
    finished: Callable[[Floats, Rows], Floats],
) -> None:
    """Rounds an expert's matrices.

    Args:
        forward: the model.
        routed: the expert and its rows.
        inputs: [rows, hidden_size], the inputs of all rows.
        judge: a judge of its own rows.
        finished: computes the sublayer's output for some rows, given how what the experts add
            changes there.
    """
    expert, x, stream = routed.expert, inputs[routed.rows], forward.hidden[routed.rows]

    def contribution(x: Floats, weights: Weights) -> Floats:
        return projection(forward.mixed(expert, x, weights), weights)

    def projection(mixed: Floats, weights: Weights) -> Floats:
        change = forward.linear(mixed, expert.down, weights) - usual
        return finished(routed.shares[judge.judged] * change, routed.rows[judge.judged])

    weights = forward.weights(*expert.linears)
    mixed = forward.mixed(expert, x, weights)
    usual = forward.linear(mixed[judge.judged], expert.down, weights)
    judge.round(x, (expert.gate, expert.up), weights, contribution, stream)
    judge.round(mixed, (expert.down,), weights, projection, stream)


def _read(
    forward: Forward, layer: Attention | Mlp | Injection | Recurrent, judge: _Judge | None
) -> None:
    """Computes a sublayer, adds its output to the residual stream, and rounds its matrices.

    A sublayer consists of matrices that read the stream, its own computation (`forward.mixed`),
    and a last matrix that reads the result.
    """
    projection = partial(forward.contribution, layer)
    weights = forward.weights(*layer.linears)
    x = forward.normed(forward.hidden, layer.norm)
    if layer.norm is None:
        x = x.copy()  # what comes next is added to the stream in place
    mixed = forward.mixed(layer, x, weights)
    forward.add(projection(mixed, weights))
    if judge is None:
        return

    def contribution(x: Floats, weights: Weights) -> Floats:
        return projection(forward.mixed(layer, x, weights, judge.judged), weights)

    *first, last = layer.linears
    judge.round(x, first, weights, contribution, forward.hidden)
    judge.round(mixed, (last,), weights, projection, forward.hidden)
