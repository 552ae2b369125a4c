"""Calibration during export, and the quality of the bundle on text that was held out.

This connects `export`, which runs the original model on tokens, with `runtime`, which tokenizes
text and runs bundles.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.errors import InputError
from edgespec.export import Calibration, RoundedMatrices, Texts, calibrate
from edgespec.export.calibration.functions import limited
from edgespec.measuring.perplexity import Scores
from edgespec.models import Checkpoint
from edgespec.runtime.arrays import Floats
from edgespec.runtime.deployment.device_names import cpu_engines
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.stage_files import suited
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.processors import default_threads
from edgespec.tuning.row_quality import RowQuality, row_quality
from edgespec.tuning.texts import WARM_UP, calibration_text, pieces_of

_PIECES = 40
# Of every `_TURN` pieces, the one at `_JUDGED` measures errors and the one at `_HELD_OUT` measures
# the bundle's quality. Weights are fitted to the others.
_TURN, _JUDGED, _HELD_OUT = 8, 3, 7
_ROWS = 32  # rows of a pass whose logits are all read
_TILE_ROWS = 8192  # rows of the output projection that are multiplied at once
# Descriptions of a bundle's quality, each with the largest KL in nats that it stands for.
_WORDS = (
    (0.01, "hard to tell from the original"),
    (0.05, "close to the original"),
    (0.15, "similar to the original, with other words here and there"),
)
_POOR = "far from the original: use a higher precision, such as --precision int8"

Report = Callable[[int, int], None]
"""Called with the number of layers that have read the text, and the number of all layers."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Quality:
    """Quality of a bundle relative to the original model, on text that nothing was fitted to.

    Attributes:
        tokens: number of predicted tokens.
        kl: mean KL(original || bundle) per token, in nats.
        agreement: share of tokens for which both have the same likeliest token.
        perplexity: perplexity of the bundle.
        original: perplexity of the original model.
        engine: engine that the bundle ran on. Others round activations otherwise.
    """

    tokens: int
    kl: float
    agreement: float
    perplexity: float
    original: float
    engine: str

    def __str__(self) -> str:
        word = next((word for most, word in _WORDS if self.kl <= most), _POOR)
        return (
            f"quality: KL {self.kl:.3f} nats, {word} (same likeliest token {self.agreement:.0%}, "
            f"perplexity {self.perplexity:.1f}, the original's {self.original:.1f}; "
            f"{self.tokens} tokens on {self.engine})"
        )


class TextCalibration:
    """Calibration on a text, to be called by `export_bundle` for each role.

    Args:
        path: file with the text; None for the built-in passages in English and Python.
        report: see `Report`.

    Raises:
        InputError: if the text is empty or not UTF-8.
        OSError: if the file cannot be read.
    """

    def __init__(self, path: Path | None = None, report: Report = lambda done, total: None) -> None:
        self._path, self._report = path, report
        self._text, self._source = calibration_text(path)
        self._held_out: _HeldOut | None = None

    def __call__(
        self, role: str, checkpoint: Checkpoint, block_size: int | None, rounded: RoundedMatrices
    ) -> Calibration | None:
        """Calibrates a role, see `Calibrate`.

        Raises:
            InputError: if the user's text is too short, or the tokenizer does not know it.
        """
        tokenizer = Tokenizer.from_files(checkpoint.tokenizer_files, checkpoint.path)
        try:
            pieces = pieces_of(self._text, tokenizer, _PIECES, self._source)
        except InputError as error:
            if self._path is not None:
                raise
            # A model for another language is exported without calibration.
            _log.warning("not calibrated: %s; give a suitable text with --calibration", error)
            return None
        texts = _parted([piece.tokens for piece in pieces])
        found = calibrate(checkpoint, texts, block_size, rounded, self._report)
        if role == TARGET and texts.held_out:
            self._held_out = _HeldOut(checkpoint, texts.held_out, found.held_out)
        return found

    def quality(self, folder: Path) -> Quality | RowQuality | None:
        """Measures the quality of a bundle's target on the text that was held out.

        Args:
            folder: folder of the bundle that was calibrated with this; it may be unfinished.

        Returns:
            The quality, of an embedding model that of its rows; None if nothing was calibrated or
            held out.
        """
        if self._held_out is None:
            return None
        held_out = self._held_out
        bundle = bundles.load(folder)
        engine = suited(bundle.target, cpu_engines())[0]
        model = Model.load(bundle, TARGET, engine, default_threads())
        if bundle.target.embedding is not None:
            return row_quality(model, held_out.texts, held_out.read, WARM_UP)
        scores, tokens = Scores(models=2), 0
        length = len(held_out.texts[0])
        for number, text in enumerate(held_out.texts):
            read = held_out.read[number * length : (number + 1) * length][WARM_UP:-1]
            wanted = _logits(held_out.checkpoint, read)
            for token, own, original in zip(
                text[WARM_UP + 1 :], _predicted(model, text), wanted, strict=True
            ):
                scores.add(token, own, original)
                tokens += 1
        return Quality(
            tokens, scores.kl.value, scores.agreement,
            scores.nats(0).perplexity, scores.nats(1).perplexity, model.device,
        )  # fmt: skip


@dataclass(frozen=True)
class _HeldOut:
    """Texts that nothing is fitted to.

    Attributes:
        checkpoint: original model.
        texts: token ids of each text; all have the same length.
        read: input of the original's output projection, for all tokens of all texts.
    """

    checkpoint: Checkpoint
    texts: Sequence[Sequence[int]]
    read: Floats


def _parted(pieces: Sequence[Sequence[int]]) -> Texts:
    judged, held_out = pieces[_JUDGED::_TURN], pieces[_HELD_OUT::_TURN]
    fitted = [piece for i, piece in enumerate(pieces) if i % _TURN not in (_JUDGED, _HELD_OUT)]
    return Texts(fitted, judged or fitted, held_out)


def _predicted(model: Model, tokens: Sequence[int]) -> Iterator[Floats]:
    """Yields a bundle's logits for the tokens after the warm-up, each valid until the next one."""
    runner = Runner(model)
    runner.prefill(tokens[:WARM_UP])
    for results in runner.score(tokens[WARM_UP:-1], _ROWS):
        yield from results["logits"]


def _logits(checkpoint: Checkpoint, read: Floats) -> Floats:
    """Computes the original's logits, [rows, vocab_size] float32, from its last hidden states."""
    decoder, tensors = checkpoint.decoder, checkpoint.tensors
    head = decoder.lm_head
    parts = [
        read @ tensors.read_rows(head.weight, start, min(start + _TILE_ROWS, head.out_features)).T
        for start in range(0, head.out_features, _TILE_ROWS)
    ]
    return limited(np.concatenate(parts, axis=1), decoder.logit_softcap)
