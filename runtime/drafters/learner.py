"""Gathers what a draft model should have said, and teaches it between texts."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgespec.errors import InputError
from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.correction import SIZE, SPAN, WIDTH, Correction, Examples
from edgespec.runtime.drafters.learned_files import DAMAGED, LearnedFile
from edgespec.runtime.drafters.ranking import Candidates

CAPACITY = 4096
"""Largest number of examples that are kept: about 0.8 MB."""
VERSION = 1
"""Version of the file format of `Learner.save`, to be raised when places of weights change."""

_BATCH = 32  # examples of a step
_PASSES = 4  # how often each example is learned
_FRESH, _DONE = 0, 1 + _PASSES  # stages of an example: it is tested first, and learned afterwards
_WORTH = 0.95  # largest divergence of a correction that is used, relative to none: it costs time
_KEEP = 0.999  # factor per example on the evidence: about the last thousand matter
_BEFORE_TEXT: tuple[int, ...] = (-1,) * SPAN
_FILE = LearnedFile(b"edgespec-draft-correction", VERSION, "draft correction")
_HEAD = struct.Struct("<qdd")  # `trained` and `evidence`; then come the weights and the squares


class Guess(NamedTuple):
    """What a draft said of one row.

    Attributes:
        context: the last `SPAN` tokens before the candidates; -1 before the text.
        tokens: [K] candidates, K up to `WIDTH`.
        logits: [K] float32, uncorrected.
    """

    context: Sequence[int]
    tokens: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]


class Evidence(NamedTuple):
    """Whether a correction helps, by decayed sums over examples that it had not learned yet.

    Each text is a test of what earlier texts taught (progressive validation: Blum, Kalai and
    Langford, 1999), so no example has to be set aside.

    Attributes:
        alone: divergence of the draft from the target without the correction, in nats.
        corrected: the same with the correction, whether or not it was in use.
    """

    alone: float = 0.0
    corrected: float = 0.0


class Learner:
    """Learns a correction from the rounds of texts; a correction that does not help is not used.

    Learning is in steps of a fraction of a millisecond. The caller decides when they are made.

    Args:
        correction: what was learned before; None for nothing.
        trained: number of examples that it was learned from.
        evidence: whether it helps.

    Attributes:
        correction: what was learned.
        trained: number of examples that it was learned from.
        evidence: whether it helps.
    """

    def __init__(
        self,
        correction: Correction | None = None,
        trained: int = 0,
        evidence: Evidence | None = None,
    ) -> None:
        self.correction = correction or Correction()
        self.trained = trained
        self.evidence = evidence or Evidence()
        # A ring buffer of examples, with the stage of each.
        self._contexts = np.zeros((CAPACITY, SPAN), np.int32)
        self._tokens = np.zeros((CAPACITY, WIDTH), np.int32)
        self._draft = np.zeros((CAPACITY, WIDTH), np.float32)
        self._target = np.zeros((CAPACITY, WIDTH), np.float32)
        self._stages = np.full(CAPACITY, _DONE, np.uint8)
        self._next = 0

    @property
    def helps(self) -> bool:
        """Whether the correction is in use."""
        return self.evidence.corrected < self.evidence.alone * _WORTH

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes, which never changes."""
        examples = self._contexts.nbytes + self._tokens.nbytes + self._stages.nbytes
        examples += self._draft.nbytes + self._target.nbytes
        return examples + self.correction.weights.nbytes + self.correction.squares.nbytes

    def improve(
        self, contexts: Sequence[Sequence[int]], candidates: Candidates
    ) -> tuple[list[Guess], Candidates]:
        """Returns a draft's output as guesses to be judged, and as it is to be used.

        Args:
            contexts: tokens before each row's candidates, as many as there are up to `SPAN`.
            candidates: output of the draft; its arrays may change afterwards.
        """
        contexts = [(*_BEFORE_TEXT, *context)[-SPAN:] for context in contexts]
        tokens, logits = candidates.tokens[:, :WIDTH].copy(), candidates.logits[:, :WIDTH].copy()
        guesses = [Guess(*row) for row in zip(contexts, tokens, logits, strict=True)]
        return guesses, self.correction.apply(contexts, candidates) if self.helps else candidates

    def record(self, guess: Guess, logits: Floats) -> None:
        """Keeps an example to learn from later.

        Args:
            guess: what the draft said of a row.
            logits: [V] what the target said of it. A row that is not finite teaches nothing.
        """
        target = logits[guess.tokens]
        if target.size < WIDTH or not (np.isfinite(target) & np.isfinite(guess.logits)).all():
            return
        place = self._next
        self._contexts[place], self._tokens[place] = guess.context, guess.tokens
        self._draft[place], self._target[place] = guess.logits, target
        self._stages[place] = _FRESH
        self._next = (place + 1) % CAPACITY

    def save(self, path: Path, fingerprint: str) -> None:
        """Writes what was learned to a file, but not the examples.

        Args:
            path: path of the file; its folder exists.
            fingerprint: what it was learned from, in one line: the bundle's digest.

        Raises:
            InputError: if the file cannot be written; an existing file stays as it was.
        """
        arrays = self.correction.weights, self.correction.squares
        body = b"".join(array.astype("<f4").tobytes() for array in arrays)
        _FILE.write(path, fingerprint, _HEAD.pack(self.trained, *self.evidence) + body)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> Learner:
        """Reads what `save` has written.

        Raises:
            InputError: if the file cannot be read, is damaged, has another version, was learned
                from another bundle, or holds impossible numbers.
        """
        content = _FILE.read(path, fingerprint)
        if len(content) != _HEAD.size + 8 * SIZE:
            raise InputError(f"{path} has {len(content)} bytes of content: {DAMAGED}")
        trained, *evidence = _HEAD.unpack_from(content)
        weights, squares = np.frombuffer(content, "<f4", offset=_HEAD.size).reshape(2, SIZE)
        finite = np.isfinite(weights).all() and np.isfinite(squares).all()
        if not (finite and all(map(math.isfinite, evidence)) and squares.min() >= 0 <= trained):
            raise InputError(f"{path} holds impossible numbers: {DAMAGED}")
        correction = Correction(weights.astype(np.float32), squares.astype(np.float32))
        return cls(correction, trained, Evidence(*evidence))

    def step(self) -> bool:
        """Tests or learns a few examples; returns False if there is nothing left to do."""
        stage = int(self._stages.min())
        if stage == _DONE:
            return False
        rows = np.flatnonzero(self._stages == stage)[:_BATCH]
        examples = Examples(
            self._contexts[rows], self._tokens[rows], self._draft[rows], self._target[rows]
        )
        if stage == _FRESH:  # all fresh ones come before any is learned
            alone, corrected = self.correction.divergences(examples)
            keep = _KEEP ** len(rows)
            self.evidence = Evidence(
                self.evidence.alone * keep + float(alone.sum()),
                self.evidence.corrected * keep + float(corrected.sum()),
            )
        else:
            self.correction.learn(examples)
            self.trained += len(rows) * (stage == _FRESH + 1)
        self._stages[rows] += 1
        return True
