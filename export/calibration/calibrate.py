"""Calibrates quantization: runs a model on texts and rounds its matrices for these inputs.

It also measures how much each matrix damages the model's computation once it is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgespec.export.arrays import Floats
from edgespec.export.calibration.damage import CalibrationResult
from edgespec.export.calibration.forward import ALL, Forward, LayerRun, Open
from edgespec.export.calibration.graph import (
    CHOSEN,
    EXPERTS,
    READ_BY_EXPERTS,
    RESULT,
    SHARES,
    STREAM,
)
from edgespec.export.formats.gptq import Columns, rounded_with_feedback
from edgespec.export.formats.products import one_blas_thread
from edgespec.export.formats.rounded_matrices import RoundedMatrices
from edgespec.export.formats.rounding import rounded as rounded_alone
from edgespec.export.formats.tiles import tile_weights
from edgespec.models import Checkpoint, Linear, Mlp, MlpAndMoe, Moe, Sublayer
from edgespec.models.layers.sublayers import PlainMlp

# The residual stream of a text's first tokens is unlike all others: no damage is measured there.
_WARM_UP = 8

Progress = Callable[[int, int], None]
"""Called with the number of layers done and the total number."""


@dataclass(frozen=True)
class Texts:
    """Token ids of calibration texts, all of the same length.

    Attributes:
        fitted: texts for whose inputs matrices are rounded.
        judged: texts on which damage is measured; on `fitted` it would look too small.
    """

    fitted: Sequence[Sequence[int]]
    judged: Sequence[Sequence[int]]


Calibrate = Callable[[Checkpoint, RoundedMatrices], CalibrationResult | None]
"""Calibrates a role, given its checkpoint and the store for rounded matrices, which knows their
formats. Returns None if the texts are not suitable for the model."""


def calibrate(
    checkpoint: Checkpoint,
    texts: Texts,
    rounded: RoundedMatrices,
    opened: Open,
    progress: Progress = lambda done, total: None,
) -> CalibrationResult:
    """Runs a model on texts, layer by layer, and rounds its matrices for their inputs.

    The inputs of all layers are those of the original model. Damage is relative to the residual
    stream, so that the matrices of one model are comparable: every sublayer normalizes it.

    Args:
        checkpoint: the model.
        texts: the calibration texts.
        rounded: receives the rounded matrices.
        opened: runs the layers.
        progress: called after each layer.

    Raises:
        CheckpointError: if the checkpoint contains or computes infinity or NaN.
        ExportError: if it contains numbers that half precision cannot represent.
    """
    with one_blas_thread():
        forward = Forward(checkpoint, np.array([*texts.fitted, *texts.judged], np.int64), opened)
        judge = _Judge(forward, len(texts.fitted), rounded)
        _run(forward, judge, len(checkpoint.decoder.layers), progress)
    return CalibrationResult(judge.damage, judge.sizes)


def last_rows(
    checkpoint: Checkpoint,
    texts: Sequence[Sequence[int]],
    opened: Open,
    progress: Progress = lambda done, total: None,
) -> Floats:
    """Runs a model on texts, and computes the inputs of its output projection.

    Args:
        checkpoint: the model.
        texts: token ids, all of the same length.
        opened: runs the layers.
        progress: called after each layer.

    Returns:
        [texts * length, hidden_size] float32.

    Raises:
        CheckpointError: if the checkpoint contains or computes infinity or NaN.
        ExportError: if it contains numbers that half precision cannot represent.
    """
    with one_blas_thread():
        forward = Forward(checkpoint, np.array(texts, np.int64), opened)
        _run(forward, None, len(checkpoint.decoder.layers), progress)
        return forward.last()


def _run(forward: Forward, judge: _Judge | None, layers: int, progress: Progress) -> None:
    """Computes all layers; with a judge, rounds their matrices."""
    for number, layer in forward.layers():
        for sublayer in layer:
            _advance(forward, judge, number, sublayer)
        progress(number + 1, layers)


def _advance(forward: Forward, judge: _Judge | None, number: int, sublayer: Sublayer) -> None:
    """Computes a sublayer of a layer; with a judge, rounds its matrices."""
    part = forward.sublayer(number, sublayer)
    inputs = {STREAM: forward.stream}
    routed = list[_ExpertRows]()
    moe = sublayer.moe if isinstance(sublayer, MlpAndMoe) else sublayer
    if isinstance(moe, Moe):
        routed, inputs[EXPERTS] = _mixed(forward, part, moe)
    found = forward.compute(part, forward.texts, inputs)
    forward.advance(found[RESULT])
    if judge is not None:
        judge.round(part, inputs, found, moe if isinstance(moe, Moe) else None)
        for each in routed:
            judge.round_expert(part, inputs, found[RESULT], each)


@dataclass(frozen=True)
class _ExpertRows:
    """The rows that choose an expert, of which there may be none.

    Attributes:
        expert: the expert.
        rows: [n] int64, numbers of the rows, ascending.
        shares: [n, 1] float32, the expert's factor in the output of each.
        x: [B * T, width], what experts read, of all rows.
    """

    expert: Mlp | PlainMlp
    rows: npt.NDArray[np.int64]
    shares: Floats
    x: Floats


def _mixed(
    forward: Forward, part: LayerRun, layer: Moe, replaced: Mapping[str, Floats] | None = None
) -> tuple[list[_ExpertRows], Floats]:
    """Returns who chooses each expert, and the sum of the experts [B * T, width]."""
    width = layer.experts[0].down.out_features
    total = np.zeros((len(forward.stream), width), np.float32)
    both = {STREAM: forward.stream, EXPERTS: total}
    seen = forward.compute(part, forward.texts, both, replaced)
    routed = []
    x = seen[READ_BY_EXPERTS]
    for number, expert in enumerate(layer.experts):
        rows, place = np.nonzero(seen[CHOSEN] == number)
        each = _ExpertRows(expert, rows, seen[SHARES][rows, place, None], x)
        routed.append(each)
        if len(rows):
            found = forward.compute_expert(forward.expert(expert), rows, x)
            total[rows] += each.shares * found[RESULT]
    return routed, total


class _Judge:
    """Rounds matrices and measures the damage.

    Args:
        forward: the model.
        fitted: number of texts for which matrices are rounded, the first ones. Damage is measured
            on the others, except for the first rows of each.
        rounded: receives the rounded matrices.

    Attributes:
        damage, sizes: see `CalibrationResult`.
    """

    def __init__(self, forward: Forward, fitted: int, rounded: RoundedMatrices) -> None:
        self._forward = forward
        self._texts = forward.texts[fitted:]
        self._fitted = self._texts[0].start
        length = self._texts[0].stop - self._texts[0].start
        places = np.arange(len(self._texts) * length) % length
        counts = places >= min(_WARM_UP, length - 1)
        self._counts = (counts / counts.sum()).astype(np.float32)
        self._rounded = rounded
        self.damage: dict[str, float] = {}
        self.sizes: dict[str, int] = {}

    def round(
        self,
        part: LayerRun,
        inputs: Mapping[str, Floats],
        found: Mapping[str, Floats],
        mixture: Moe | None,
    ) -> None:
        """Rounds the matrices of a sublayer but for its experts.

        Args:
            part: the sublayer.
            inputs: its inputs for all rows.
            found: its outputs for all rows.
            mixture: its mixture of experts; None: it has none.
        """
        usual = found[RESULT][self._fitted :]
        entry = None if mixture is None else mixture.entry

        def change(replaced: Mapping[str, Floats]) -> Floats:
            own = dict(inputs)
            if mixture is not None and entry is not None and entry.weight in replaced:
                own[EXPERTS] = _mixed(self._forward, part, mixture, replaced)[1]
            other: Floats = self._forward.compute(part, self._texts, own, replaced)[RESULT]
            return other - usual

        worth = self._worth(usual)
        for name, layers in part.reads.items():
            self._round(layers, part.weights, found[name][: self._fitted], change, worth)

    def round_expert(
        self, mixture: LayerRun, inputs: Mapping[str, Floats], usual: Floats, routed: _ExpertRows
    ) -> None:
        """Rounds an expert by the rows that choose it; one that none chooses, like without a text.

        Args:
            mixture: the sublayer.
            inputs: its inputs for all rows.
            usual: its result for all rows.
            routed: the expert and its rows.
        """
        forward = self._forward
        expert = self._forward.expert(routed.expert)
        seen = forward.compute_expert(expert, routed.rows, routed.x)
        first = int(np.searchsorted(routed.rows, self._fitted))
        rows = routed.rows[first:]
        shares = routed.shares[first:]
        own = seen[RESULT][first:]

        def change(replaced: Mapping[str, Floats]) -> Floats:
            other = forward.compute(expert, [rows], {STREAM: routed.x}, replaced)[RESULT] - own
            sums = inputs[EXPERTS][rows] + shares * other
            both = {STREAM: inputs[STREAM][rows], EXPERTS: sums}
            found: Floats = forward.compute(mixture, [ALL], both)[RESULT]
            return found - usual[rows]

        worth = self._worth(usual[self._fitted :])[rows - self._fitted]
        for name, layers in expert.reads.items():
            self._round(layers, expert.weights, seen[name][:first], change, worth)

    def _worth(self, stream: Floats) -> Floats:
        """Returns the factor of a judged row's squared change in the damage, [rows]."""
        square = np.square(stream).sum(axis=1)
        worth: Floats = self._counts / np.maximum(square, np.finfo(np.float32).tiny)
        return worth

    def _round(
        self,
        layers: Sequence[Linear],
        weights: Mapping[str, Floats],
        x: Floats,
        change: Callable[[Mapping[str, Floats]], Floats],
        worth: Floats,
    ) -> None:
        """Rounds the matrices of layers that have the same input.

        Args:
            layers: the layers.
            weights: their matrices.
            x: [rows, K], their input in the texts that they are rounded for.
            change: computes how the judged rows of the stream change with other matrices.
            worth: see `_worth`.
        """
        for layer in layers:
            self.damage[layer.weight], self.sizes[layer.weight] = 0.0, weights[layer.weight].size
        layers = [layer for layer in layers if layer.weight in self._rounded.formats]
        if not layers:
            return
        columns = Columns(x) if len(x) else None
        for name in (layer.weight for layer in layers):
            form = self._rounded.formats[name]
            found = (
                rounded_alone(form, weights[name])
                if columns is None
                else rounded_with_feedback(form, weights[name], columns)
            )
            self._rounded.keep(name, found, None if columns is None else columns.importance)
            if len(worth):
                changed = change({name: tile_weights(form, found.tiles, *weights[name].shape)})
                self.damage[name] = float(worth @ np.square(changed).sum(axis=1))
