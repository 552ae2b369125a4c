"""Calibration during export.

This connects `export`, which emits the original model's layers, with `runtime`, which runs them and
tokenizes text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from edgespec.errors import InputError
from edgespec.export import CalibrationResult, Open, RoundedMatrices, Texts, calibrate
from edgespec.models import Checkpoint
from edgespec.runtime.kernels import library, missing_kernels
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.tuning.texts import calibration_text, pieces_of

_PIECES = 40
# Of every `_TURN` pieces, the one at `_JUDGED` measures errors and the one at `_HELD_OUT` measures
# the bundle's quality. Weights are fitted to the others.
_TURN = 8
_JUDGED = 3
_HELD_OUT = 7

Report = Callable[[int, int], None]
"""Called with the number of layers that have read the text, and the number of all layers."""

_log = logging.getLogger(__name__)


class TextCalibration:
    """Calibration on a text, to be called by `export.make` for each role.

    Args:
        path: file with the text; None for the built-in passages in English and Python.
        report: see `Report`.

    Raises:
        InputError: if the text is empty or not UTF-8.
        OSError: if the file cannot be read.
    """

    def __init__(self, path: Path | None = None, report: Report = lambda done, total: None) -> None:
        self._path = path
        self._report = report
        self._text, self._source = calibration_text(path)

    def __call__(
        self, checkpoint: Checkpoint, rounded: RoundedMatrices
    ) -> CalibrationResult | None:
        """Calibrates a role, see `Calibrate`; without compiled operators, returns None, too.

        Raises:
            InputError: if the user's text is too short, or the tokenizer does not know it.
        """
        if (opened := opener()) is None:
            _log.warning("not calibrated: %s", missing_kernels())
            return None
        try:
            texts, _ = parts_of(checkpoint, self._text, self._source)
        except InputError as error:
            if self._path is not None:
                raise
            # A model for another language is exported without calibration.
            _log.warning("not calibrated: %s; give a suitable text with --calibrate FILE", error)
            return None
        return calibrate(checkpoint, texts, rounded, opened, self._report)


def opener() -> Open | None:
    """Returns what makes layers ready to run; None: the operators were not compiled."""
    operators = library()
    if operators is None:
        return None
    from edgespec.runtime.engines.native import NativeGraph  # loads ONNX Runtime

    return lambda graph: NativeGraph(graph, operators, threads=1)


def parts_of(
    checkpoint: Checkpoint, text: str, source: str
) -> tuple[Texts, Sequence[Sequence[int]]]:
    """Cuts a text for a model, always into the same pieces of the same length.

    Args:
        checkpoint: the model.
        text: the text.
        source: name of the text in messages.

    Returns:
        The pieces for calibration, and those that nothing is fitted to; none of a short text.

    Raises:
        InputError: if the text is too short, or the model's tokenizer does not know it.
    """
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer_files, checkpoint.path)
    pieces = pieces_of(text, tokenizer, _PIECES, source)
    judged = pieces[_JUDGED::_TURN]
    held_out = pieces[_HELD_OUT::_TURN]
    fitted = [piece for i, piece in enumerate(pieces) if i % _TURN not in (_JUDGED, _HELD_OUT)]
    return Texts(fitted, judged or fitted), held_out
