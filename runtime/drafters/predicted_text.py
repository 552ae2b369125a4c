"""A predicted text, in which the end of another text can be found."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from edgespec.runtime.drafters.automaton import SuffixAutomaton


class Prediction:
    """A predicted text, in which the end of another text can be found.

    Args:
        tokens: the predicted tokens.

    Attributes:
        tokens: the same.
        automaton: suffix automaton of them.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self.automaton = SuffixAutomaton()
        self.automaton.extend(tokens)
        packed = array("q", tokens)
        self._width, self._bytes = packed.itemsize, packed.tobytes()

    def __len__(self) -> int:
        return len(self.tokens)

    def nearest(self, end: int, length: int, after: int) -> int:
        """Returns where the tokens before a place occur next behind another place.

        Args:
            end: place just after an occurrence.
            length: number of tokens before `end` to look for, at least 1.
            after: place behind which to look first.

        Returns:
            The end of the first occurrence that ends behind `after`, or else that of the last one
            before it.
        """
        pattern = self._bytes[(end - length) * self._width : end * self._width]
        start = max(0, after + 1 - length) * self._width
        while (found := self._bytes.find(pattern, start)) % self._width:
            if found < 0:  # there is none
                return self._last(pattern) + length
            start = found + 1  # across the borders of tokens
        return found // self._width + length

    def _last(self, pattern: bytes) -> int:
        stop = len(self._bytes)
        while (found := self._bytes.rfind(pattern, 0, stop)) % self._width:
            stop = found + len(pattern) - 1
        return found // self._width
