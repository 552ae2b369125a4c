"""Finds where a text stands in another one, which it was predicted to be.

While both have the same tokens, they go on side by side. Where they part, the longest suffix of the
text that the prediction holds tells where to go on, as in Aggressive Decoding (Ge et al., 2022).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from edgespec.runtime.drafters.automaton import SuffixAutomaton

_SURE = 3  # tokens side by side from which on a place is no accident


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


class Alignment:
    """Follows a text through its prediction.

    Args:
        prediction: the predicted text. The other one begins where it begins.

    Attributes:
        place: index of the predicted token that is expected next; the number of predicted tokens
            at their end; None where nothing of the text's end was predicted.
        length: number of tokens before `place` that both texts have in common; 0 at first.
        ahead: whether `place` lies behind all that the text has surely followed.
    """

    def __init__(self, prediction: Prediction) -> None:
        self._prediction = prediction
        self.place: int | None = 0
        self.length = 0
        self.ahead = True
        self._sure = 0  # the last place that was no accident
        # The automaton's state for the longest suffix of the text, and its length.
        self._state = self._suffix = 0
        self._followed = bytearray(len(prediction))

    @property
    def expected(self) -> int | None:
        """The predicted token; None if there is none."""
        if self.place is None or self.place == len(self._prediction):
            return None
        return self._prediction.tokens[self.place]

    @property
    def followed(self) -> int:
        """Number of predicted tokens that the text had where they were expected."""
        return self._followed.count(1)

    def read(self, token: int) -> None:
        """Append a token to the text."""
        automaton = self._prediction.automaton
        self._state, self._suffix = automaton.follow(self._state, self._suffix, token)
        if self.place is not None and self.expected == token:
            self._followed[self.place] = 1
            self.place, self.length = self.place + 1, self.length + 1
        else:
            self._align()
        if self.place is not None and self.length >= _SURE:
            self._sure = self.place

    def _align(self) -> None:
        """Find the place after the longest suffix, ahead of what is sure if possible."""
        self.length = self._suffix
        if not self._suffix:
            self.place = None
            return
        end = self._prediction.automaton.end(self._state)
        self.place = self._prediction.nearest(end, self._suffix, self._sure)
        self.ahead = self.place > self._sure
