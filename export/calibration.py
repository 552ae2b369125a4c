"""What quantization must keep, seen as a model reads texts.

Which columns of a matrix read large inputs, and which matrices in few bits would change the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.export.forward import Floats, Forward, Weights
from edgespec.export.quantize import dequantize_rows, quantize_rows
from edgespec.models import Attention, Checkpoint, Decoder, Linear, Mlp

# Of the first tokens of a text the residual stream is unlike all others: no matrix is judged there.
_WARM_UP = 8
_JUDGED_TEXTS = 4
# Of a column's importance, as a share of the mean: nothing is worth nothing.
_LEAST = 1e-6
_TILE_ROWS = 1024
_BITS = 4  # 8 lose next to nothing

Progress = Callable[[int, int], None]
"""Is called with the layers that are done and the layers in all."""


@dataclass(frozen=True)
class Calibration:
    """What a model showed on some texts.

    Attributes:
        importance: [K] float32 for each matrix of the layers, by name: the mean square of what each
            of its columns is multiplied with.
        damage: for each of them, how much its sublayer's contribution changes if this one matrix
            has 4 bits: the mean over tokens of the squared change over the residual stream's
            square.
        sizes: weights of each of them.
        held_out: [rows, hidden_size] float32: what the head reads before each token of the texts
            that were kept out of everything else.
    """

    importance: Mapping[str, Floats]
    damage: Mapping[str, float]
    sizes: Mapping[str, int]
    held_out: Floats


Calibrate = Callable[[str, Checkpoint, int | None], Calibration | None]
"""Calibrates a role: its name, its model, and the weights that share a scale, None where nobody
needs to know the damage. None where its text says nothing of the model."""


def calibrate(
    checkpoint: Checkpoint,
    texts: Sequence[Sequence[int]],
    held_out: Sequence[Sequence[int]],
    block_size: int | None,
    progress: Progress = lambda done, total: None,
) -> Calibration:
    """Have a model read texts, layer by layer.

    Weighting each column's rounding by the mean square of its inputs is what activation-aware
    quantization has in common (Lin et al., 2024; Frantar et al., 2023, whose Hessian's diagonal it
    is). Judging matrices by what they do to the residual stream makes those of one model
    comparable, since every sublayer reads that stream normalized.

    Args:
        checkpoint: the model.
        texts: tokens, all texts of one length.
        held_out: further texts of that length, which the model reads for `Calibration.held_out`.
        block_size: weights that share a scale; None: `Calibration.damage` is not wanted.
        progress: told of each layer.
    """
    decoder = checkpoint.decoder
    forward = Forward(checkpoint, np.array([*texts, *held_out], np.int64))
    seen, length = len(texts) * len(texts[0]), len(texts[0])
    judge = _Judge(seen, length, block_size)
    for done, (attention, mlp) in enumerate(decoder.layers, 1):
        _read_attention(forward, attention, judge)
        _read_mlp(forward, mlp, judge)
        progress(done, len(decoder.layers))
    return Calibration(
        judge.importance, judge.damage, judge.sizes, forward.normed(decoder.norm)[seen:]
    )


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
    return frozenset(layer.weight for a, _ in decoder.layers for layer in (a.k, a.v))


class _Judge:
    """Gathers `Calibration`'s tables.

    Args:
        seen: rows that count, from the first on; others are held out.
        length: rows of a text.
        block_size: weights that share a scale; None: nothing is judged.

    Attributes:
        judged: the rows by which damage is judged, but for each text's first ones.
    """

    def __init__(self, seen: int, length: int, block_size: int | None) -> None:
        self.judged = slice(0, min(_JUDGED_TEXTS * length, seen))
        self._counts = np.arange(self.judged.stop) % length >= min(_WARM_UP, length - 1)
        self._seen, self._block_size = seen, block_size
        self.importance: dict[str, Floats] = {}
        self.damage: dict[str, float] = {}
        self.sizes: dict[str, int] = {}

    def inputs(self, x: Floats, layers: Iterable[Linear]) -> None:
        """All rows of what layers read."""
        square = np.square(x[: self._seen]).mean(axis=0)
        square += _LEAST * square.mean() or 1
        for layer in layers:
            self.importance[layer.weight] = square
            self.sizes[layer.weight] = layer.in_features * layer.out_features

    def results(
        self,
        layer: Linear,
        weights: Weights,
        compute: Callable[[Weights], Floats],
        update: Floats,
        stream: Floats,
    ) -> None:
        """What one matrix in 4 bits makes of its sublayer.

        Args:
            layer: whose matrix.
            weights: of the sublayer.
            compute: the sublayer's contribution to judged rows with other weights.
            update: its contribution to all rows, [rows, hidden_size].
            stream: the residual stream behind it.
        """
        if self._block_size is None:
            return
        rounded = self._rounded(layer.weight, weights[layer.weight], self._block_size)
        change = compute({**weights, layer.weight: rounded}) - update[self.judged]
        square = np.square(stream[self.judged]).sum(axis=1)
        relative = np.square(change).sum(axis=1) / np.maximum(square, np.finfo(np.float32).tiny)
        self.damage[layer.weight] = float(relative[self._counts].mean())

    def _rounded(self, name: str, weight: Floats, block_size: int) -> Floats:
        width, rounded = weight.shape[1], np.empty_like(weight)
        for start in range(0, len(weight), _TILE_ROWS):
            tile = slice(start, start + _TILE_ROWS)
            found = quantize_rows(weight[tile], _BITS, block_size, self.importance[name])
            rounded[tile] = dequantize_rows(found, _BITS)[:, :width]
        return rounded


def _read_attention(forward: Forward, layer: Attention, judge: _Judge) -> None:
    weights = forward.weights(layer.q, layer.k, layer.v, layer.o)
    x = forward.normed(layer.norm)
    mixed = forward.attended(layer, x, weights)
    judge.inputs(x, (layer.q, layer.k, layer.v))
    judge.inputs(mixed, (layer.o,))
    update = forward.linear(mixed, layer.o, weights)
    forward.hidden += update
    few_x, few_mixed = x[judge.judged], mixed[judge.judged]

    def attended(others: Weights) -> Floats:
        return forward.linear(forward.attended(layer, few_x, others), layer.o, others)

    def projected(others: Weights) -> Floats:
        return forward.linear(few_mixed, layer.o, others)

    for part in (layer.q, layer.k, layer.v):
        judge.results(part, weights, attended, update, forward.hidden)
    judge.results(layer.o, weights, projected, update, forward.hidden)


def _read_mlp(forward: Forward, layer: Mlp, judge: _Judge) -> None:
    weights = forward.weights(layer.gate, layer.up, layer.down)
    x = forward.normed(layer.norm)
    gated = forward.gated(layer, x, weights)
    judge.inputs(x, (layer.gate, layer.up))
    judge.inputs(gated, (layer.down,))
    update = forward.linear(gated, layer.down, weights)
    forward.hidden += update
    few_x, few_gated = x[judge.judged], gated[judge.judged]

    def activated(others: Weights) -> Floats:
        return forward.linear(forward.gated(layer, few_x, others), layer.down, others)

    def projected(others: Weights) -> Floats:
        return forward.linear(few_gated, layer.down, others)

    for part in (layer.gate, layer.up):
        judge.results(part, weights, activated, update, forward.hidden)
    judge.results(layer.down, weights, projected, update, forward.hidden)
