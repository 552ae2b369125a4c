"""A model reads texts, so that its matrices are rounded by what they read.

And so that those which change what follows most in few bits are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.export.calibration.forward import Forward, Weights
from edgespec.export.formats.blocks import Floats, dequantize_rows
from edgespec.export.formats.gptq import BITS, Columns, quantize_with_feedback
from edgespec.export.formats.rounded_matrices import RoundedMatrices
from edgespec.models import Checkpoint, Decoder, Linear, Sublayer

# Of the first tokens of a text the residual stream is unlike all others: no matrix is judged there.
_WARM_UP = 8

Progress = Callable[[int, int], None]
"""Is called with the layers that are done and the layers in all."""


@dataclass(frozen=True)
class Calibration:
    """What a model showed on some texts.

    Attributes:
        damage: for each matrix of the layers, by name: how much its sublayer's contribution changes
            if this one has 4 bits: the mean over tokens of the squared change over the residual
            stream's square.
        sizes: weights of each of them.
        held_out: [rows, hidden_size] float32: what the head reads at the tokens of the texts that
            were kept out of everything else.
    """

    damage: Mapping[str, float]
    sizes: Mapping[str, int]
    held_out: Floats


@dataclass(frozen=True)
class Texts:
    """Tokens that a model reads, all texts of one length.

    Attributes:
        fitted: by which matrices are rounded.
        judged: by which damage is told; where rounding was fitted it looks better than it is.
        held_out: of which only `Calibration.held_out` is told.
    """

    fitted: Sequence[Sequence[int]]
    judged: Sequence[Sequence[int]]
    held_out: Sequence[Sequence[int]]


Calibrate = Callable[[str, Checkpoint, int | None, RoundedMatrices], Calibration | None]
"""Calibrates a role: its name, its model, the weights that share a scale, None where nothing is to
be rounded, and where rounded matrices go. None where its text says nothing of the model."""


def calibrate(
    checkpoint: Checkpoint,
    texts: Texts,
    block_size: int | None,
    rounded: RoundedMatrices,
    progress: Progress = lambda done, total: None,
) -> Calibration:
    """Have a model read texts, layer by layer, and round its matrices to 4 bits by what they read.

    All layers read what the original computes. Judging matrices by what they do to the residual
    stream makes those of one model comparable, since every sublayer reads that stream normalized.

    Args:
        checkpoint: the model.
        texts: see there.
        block_size: weights that share a scale; None: nothing is rounded.
        rounded: gets the rounded matrices.
        progress: told of each layer.

    Raises:
        CheckpointError: if the checkpoint holds infinity or NaN, or computes it.
        ExportError: if it holds what half precision does not.
    """
    decoder = checkpoint.decoder
    parts = texts.fitted, texts.judged, texts.held_out
    forward = Forward(checkpoint, np.array([text for part in parts for text in part], np.int64))
    length = len(texts.fitted[0])
    fitted, judged = (len(part) * length for part in parts[:2])
    judge = _Judge(slice(0, fitted), slice(fitted, fitted + judged), length, block_size, rounded)
    for done, layer in enumerate(decoder.layers, 1):
        for sublayer in layer:
            _read(forward, sublayer, judge)
        progress(done, len(decoder.layers))
    held_out = forward.normed(forward.hidden, decoder.norm)[fitted + judged :]
    return Calibration(judge.damage, judge.sizes, held_out)


def to_widen(calibration: Calibration, damage: float, share: float) -> frozenset[str]:
    """The matrices that want 8 bits most: those whose weights do most damage in 4.

    Args:
        calibration: of the model.
        damage: that all others together may do.
        share: of the weights that may have 8 bits.
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
    """Those that want 8 bits in any model, for who calibrates nothing.

    Keys and values of grouped heads are a hundredth of the weights and a third of the damage.
    """
    return frozenset(layer.weight for each in decoder.attentions for layer in (each.k, each.v))


class _Judge:
    """Rounds matrices, and tells what that does.

    Args:
        fitted: rows by which matrices are rounded.
        judged: rows by which damage is told, but for each text's first ones.
        length: rows of a text.
        block_size: weights that share a scale; None: nothing is rounded.
        rounded: gets the rounded matrices.

    Attributes:
        damage, sizes: see `Calibration`.
    """

    def __init__(
        self,
        fitted: slice,
        judged: slice,
        length: int,
        block_size: int | None,
        rounded: RoundedMatrices,
    ) -> None:
        self._fitted, self._judged = fitted, judged
        rows = np.arange(judged.stop - judged.start)
        self._counts = rows % length >= min(_WARM_UP, length - 1)
        self._block_size, self._rounded = block_size, rounded
        self.damage: dict[str, float] = {}
        self.sizes: dict[str, int] = {}

    def round(
        self,
        x: Floats,
        layers: Iterable[Linear],
        weights: Weights,
        compute: Callable[[Floats, Weights], Floats],
        stream: Floats,
    ) -> None:
        """Round the matrices of layers that read the same.

        Args:
            x: [rows, K], what they read.
            layers: whose matrices.
            weights: of the sublayer.
            compute: the sublayer's contribution by what these layers read and by its weights.
            stream: [rows, hidden_size], the residual stream behind the sublayer.
        """
        if self._block_size is None:
            return
        columns = Columns(x[self._fitted], self._block_size)
        few = x[self._judged]
        square = np.square(stream[self._judged]).sum(axis=1)
        square = np.maximum(square, np.finfo(np.float32).tiny)
        wanted = compute(few, weights)
        for layer in layers:
            name, weight = layer.weight, weights[layer.weight]
            found = quantize_with_feedback(weight, columns)
            self._rounded.keep(name, found)
            others = {**weights, name: dequantize_rows(found, BITS)[:, : layer.in_features]}
            change = np.square(compute(few, others) - wanted).sum(axis=1)
            self.damage[name] = float((change / square)[self._counts].mean())
            self.sizes[name] = weight.size


def _read(forward: Forward, layer: Sublayer, judge: _Judge) -> None:
    """Have a sublayer read the residual stream and add to it, and round its matrices.

    It has matrices that read the stream, then its own computation (`forward.mixed`), then one
    matrix that reads what that gives.
    """
    *first, last = layer.linears

    def contribution(x: Floats, weights: Weights) -> Floats:
        return projection(forward.mixed(layer, x, weights), weights)

    def projection(mixed: Floats, weights: Weights) -> Floats:
        return forward.normed(forward.linear(mixed, last, weights), layer.post_norm)

    weights = forward.weights(*layer.linears)
    x = forward.normed(forward.hidden, layer.norm)
    mixed = forward.mixed(layer, x, weights)
    forward.add(projection(mixed, weights))
    judge.round(x, first, weights, contribution, forward.hidden)
    judge.round(mixed, (last,), weights, projection, forward.hidden)
