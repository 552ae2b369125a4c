"""Rows that stand for texts, of models that make vectors or scores of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.bundle import FIRST_TOKEN, MEAN
from edgespec.llm.instance import ModelInstance
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.sequences.model import AFTER, Rows
from edgespec.runtime.sequences.pool import TokenSequence

Check = Callable[[], None]
"""Called before each pass of the model. What it raises ends the work."""

Row = npt.NDArray[np.floating[Any]]
"""A row of a text, of float32, or of float64 where it is a mean."""

_CHUNK = 128  # rows of a pass, but for a longer text that is read in one


@dataclass(frozen=True)
class TextTokens:
    """A text to be read.

    Attributes:
        tokens: its token ids.
        reads: see `Rows`.
    """

    tokens: Sequence[int]
    reads: Mapping[str, Array] = field(default_factory=dict)


class TextRows:
    """Makes a row of each text: short texts share passes, and long ones are read in chunks.

    A row has the same bits in any company.

    Args:
        loaded: the model.
        pooling: one of `POOLINGS`.
        alone: whether texts share no passes, however short they are.
    """

    def __init__(self, loaded: ModelInstance, pooling: str, alone: bool = False) -> None:
        self._loaded = loaded
        self._pooling = pooling
        self._alone = alone
        self._most = min(_CHUNK, loaded.plan.context)

    def of(self, texts: Sequence[TextTokens], check: Check = lambda: None) -> Iterator[Row]:
        """Yields a row for each text, [width].

        Raises:
            InputError: if the model was closed.
        """
        for group in self._groups(texts):
            yield from self._read(group, check)

    def _groups(self, texts: Sequence[TextTokens]) -> Iterator[list[TextTokens]]:
        group = list[TextTokens]()
        rows = 0
        for text in texts:
            if group and (self._alone or rows + len(text.tokens) > self._most):
                yield group
                group = []
                rows = 0
            group.append(text)
            rows += len(text.tokens)
        if group:
            yield group

    def _read(self, group: Sequence[TextTokens], check: Check) -> list[Row]:
        """Reads texts in passes without others: in one, or if there is one text in several."""
        engine = self._loaded.engine
        whole = self._loaded.bundle.target.both_ways
        engine.require_open()
        with engine.exclusive():
            model = engine.target
            sequences = [model.sequence(list(each.tokens)) for each in group]
            found: list[Row] = [np.zeros(1)] * len(group)
            try:
                while sequences[0].unread:
                    engine.require_open()
                    check()
                    passed = [
                        self._rows(sequence, text, None if whole else self._most)
                        for sequence, text in zip(sequences, group, strict=True)
                    ]
                    for number, own in enumerate(model.forward(passed)):
                        found[number] = self._joined(found[number], own)
                        passed[number].accept(range(len(passed[number].tokens)))
            finally:
                for sequence in sequences:
                    sequence.free()
        if self._pooling == MEAN:
            return [row / len(text.tokens) for row, text in zip(found, group, strict=True)]
        return found

    def _rows(self, sequence: TokenSequence, text: TextTokens, most: int | None) -> Rows:
        tokens = sequence.unread[:most]
        count = len(tokens)
        wanted = [count - 1]
        if self._pooling == MEAN:
            wanted = list(range(count))
        elif self._pooling == FIRST_TOKEN:
            wanted = [] if sequence.length else [0]
        return Rows(sequence, tokens, [AFTER, *range(count - 1)], wanted, reads=text.reads)

    def _joined(self, before: Row, rows: Floats) -> Row:
        """Returns what the rows of a text's passes give so far."""
        if self._pooling == MEAN:
            total: Row = before + rows.sum(axis=0, dtype=np.float64)
            return total
        return rows[0].copy() if len(rows) else before
