"""The quality of a bundle: how far its predictions are from the original's, on text held out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.errors import InputError
from edgespec.export import last_rows
from edgespec.export.formats.products import one_blas_thread, product
from edgespec.llm.load.models import load_model
from edgespec.measuring.perplexity import Scores, predictions
from edgespec.models import Checkpoint, load_checkpoint
from edgespec.runtime.arrays import Floats
from edgespec.runtime.kernels import missing_kernels
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sequences.model import Model
from edgespec.tuning.calibrating import Report, opener, parts_of
from edgespec.tuning.texts import WARM_UP, calibration_text

_TILE_ROWS = 8192  # rows of the output projection that are multiplied at once
# Descriptions of a bundle's quality, each with the largest KL in nats that it stands for.
_WORDS = (
    (0.01, "hard to tell from the original"),
    (0.05, "close to the original"),
    (0.15, "similar to the original, with other words here and there"),
)
_CLOSE = 0.98  # cosine of rows
_TINY = np.finfo(np.float32).tiny
_POOR = "far from the original: use a higher precision, such as --precision int8"

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
        device: what the bundle ran on. Others round activations otherwise.
    """

    tokens: int
    kl: float
    agreement: float
    perplexity: float
    original: float
    device: str

    def __str__(self) -> str:
        word = next((word for most, word in _WORDS if self.kl <= most), _POOR)
        return (
            f"quality: KL {self.kl:.3f} nats, {word} (same likeliest token {self.agreement:.0%}, "
            f"perplexity {self.perplexity:.1f}, the original's {self.original:.1f}; "
            f"{self.tokens} tokens on {self.device})"
        )


@dataclass(frozen=True)
class RowQuality:
    """Quality of an embedding model's bundle, on text that nothing was fitted to.

    Attributes:
        rows: number of compared rows, one for each token.
        cosine: mean cosine of the bundle's and the original's row of a token.
        device: what the bundle ran on.
    """

    rows: int
    cosine: float
    device: str

    def __str__(self) -> str:
        word = "close to the original" if self.cosine >= _CLOSE else _POOR
        where = f"{self.rows} tokens on {self.device}"
        return f"quality: cosine {self.cosine:.4f} of rows, {word} ({where})"


class HeldOutText:
    """Text that calibration holds out, on which a bundle is compared with its checkpoint.

    Args:
        source: checkpoint of the bundle's target.
        path: file with the text for calibration; None for the built-in passages.
        report: see `Report`.

    Raises:
        CheckpointError: if the checkpoint is damaged or not supported.
        InputError: if the user's text is empty, too short or not UTF-8, or the tokenizer does not
            know it.
        OSError: if the file cannot be read.
    """

    def __init__(
        self, source: Path, path: Path | None = None, report: Report = lambda done, total: None
    ) -> None:
        self._checkpoint = load_checkpoint(source)
        self._report = report
        self._texts: Sequence[Sequence[int]] = ()
        text, name = calibration_text(path)
        try:
            _, self._texts = parts_of(self._checkpoint, text, name)
            if not self._texts:
                raise InputError(f"{name} is too short to hold some of it out: give 2000 tokens")
        except InputError as error:
            if path is not None:
                raise
            _log.warning(
                "quality not measured: %s; give a suitable text with --calibrate FILE", error
            )

    def quality(self, folder: Path) -> Quality | RowQuality | None:
        """Measures the quality of a bundle's target.

        Args:
            folder: folder of the bundle; it may be unfinished.

        Returns:
            The quality, of an embedding model that of its rows; None if the built-in passages do
            not suit the model, it ranks texts, or the operators were not compiled, which is logged.
        """
        if not self._texts or self._checkpoint.ranking is not None:
            return None
        if (opened := opener()) is None:
            _log.warning("quality not measured: %s", missing_kernels())
            return None
        read = last_rows(self._checkpoint, self._texts, opened, self._report)
        bundle = bundles.load(folder)
        model = load_model(bundle, TARGET, Placement(HOST))
        with one_blas_thread():  # beside the model's
            if bundle.target.embedding is not None:
                return _rows_compared(model, self._texts, read)
            return _compared(self._checkpoint, model, self._texts, read)


def _compared(
    checkpoint: Checkpoint, model: Model, texts: Sequence[Sequence[int]], read: Floats
) -> Quality:
    """Compares a bundle's predictions with those of the original, given its last hidden states."""
    scores = Scores(models=2)
    tokens = 0
    for text, rows in zip(texts, np.split(read, len(texts)), strict=True):
        wanted = logits_of(checkpoint, rows[WARM_UP:-1])
        for token, own, original in zip(
            text[WARM_UP + 1 :], predictions(model, text[:-1], WARM_UP), wanted, strict=True
        ):
            scores.add(token, own, original)
            tokens += 1
    return Quality(
        tokens,
        scores.kl.value,
        scores.agreement,
        scores.nats(0).perplexity,
        scores.nats(1).perplexity,
        model.device,
    )


def _rows_compared(model: Model, texts: Sequence[Sequence[int]], read: Floats) -> RowQuality:
    """Compares a bundle's rows with the original's behind its last norm."""
    cosines = list[float]()
    whole = len(texts[0])  # some models read a text in one pass
    for text, rows in zip(texts, np.split(read, len(texts)), strict=True):
        for own, original in zip(
            predictions(model, text, WARM_UP, whole), rows[WARM_UP:], strict=True
        ):
            lengths = float(np.linalg.norm(own) * np.linalg.norm(original))
            cosines.append(float(own @ original) / max(lengths, float(_TINY)))
    return RowQuality(len(cosines), fmean(cosines), model.device)


def logits_of(checkpoint: Checkpoint, read: Floats) -> Floats:
    """Computes the original's logits, [rows, vocab_size] float32, from what `last_rows` gives."""
    decoder = checkpoint.decoder
    tensors = checkpoint.tensors
    head = decoder.lm_head
    parts = [
        product(
            read, tensors.read_rows(head.weight, start, min(start + _TILE_ROWS, head.out_features))
        )
        for start in range(0, head.out_features, _TILE_ROWS)
    ]
    logits: Floats = np.concatenate(parts, axis=1)
    if head.bias is not None:
        logits += tensors.read(head.bias)
    cap = decoder.logit_softcap
    return logits if cap is None else np.float32(cap) * np.tanh(logits / np.float32(cap))
