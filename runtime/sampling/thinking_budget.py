"""A limit on the tokens that a model spends on reasoning before its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgespec.runtime.arrays import Mask
from edgespec.runtime.sampling.constraint import Constraint

_REPLACEMENT = "\ufffd"
_TAIL = 24  # tokens in which the beginning and the end of reasoning are looked for


@dataclass(frozen=True)
class ReasoningMarks:
    """How reasoning begins and ends.

    Attributes:
        begin: text that begins it.
        end: text that ends it.
        end_tokens: tokens of `end`.
        decode: returns the text of tokens, special ones included.
    """

    begin: str
    end: str
    end_tokens: tuple[int, ...]
    decode: Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class _State:
    """Where a text is.

    Attributes:
        inside: whether it is inside of reasoning; None before the first characters.
        left: tokens of reasoning that may still come.
        tail: latest tokens.
        closing: tokens that must come to end the reasoning.
    """

    inside: bool | None
    left: int
    tail: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()

    def after(self, token: int, marks: ReasoningMarks) -> _State:
        """Returns the state after one more token."""
        if self.inside is False:
            return self
        if self.closing:
            rest = self.closing[1:]
            return replace(self, closing=rest, inside=bool(rest))
        tail = (*self.tail, token)[-_TAIL:]
        if self.inside is None:
            begun = marks.decode(tail).lstrip()
            if begun.startswith(marks.begin):
                return replace(self, inside=True, tail=()).checked(marks)
            return replace(self, tail=tail, inside=None if marks.begin.startswith(begun) else False)
        # The tail is decoded only where the reasoning may end.
        if marks.end[-1] in marks.decode((token,)) and marks.end in marks.decode(tail):
            return replace(self, inside=False)
        return replace(self, left=self.left - 1, tail=tail).checked(marks)

    def checked(self, marks: ReasoningMarks) -> _State:
        """Returns the state with the closing tokens, if the budget is used up.

        The last character is completed first, so that the text stays valid.
        """
        if not self.inside or self.left > 0 or marks.decode(self.tail).endswith(_REPLACEMENT):
            return self
        return replace(self, closing=marks.end_tokens)


class ThinkingBudget:
    """Ends a model's reasoning after some tokens, by the text that the model itself ends it with.

    Args:
        reasoning: how the model writes reasoning.
        tokens: number of tokens of reasoning, those that begin and end it not counted.
        inside: whether the prompt has begun the reasoning.
        vocab_size: number of tokens of the vocabulary.
        then: further restriction of the text, reasoning included; None if there is none.
    """

    def __init__(
        self,
        reasoning: ReasoningMarks,
        tokens: int,
        inside: bool,
        vocab_size: int,
        then: Constraint | None = None,
    ) -> None:
        self._how = reasoning
        self._vocab_size = vocab_size
        self._then = then
        self._state = _State(True if inside else None, tokens).checked(reasoning)

    def allowed(self) -> Mask | None:
        """See `Constraint`."""
        if not self._state.closing:
            return None if self._then is None else self._then.allowed()
        only: Mask = np.zeros(self._vocab_size, np.bool_)
        only[self._state.closing[0]] = True
        return only

    def advance(self, token: int) -> None:
        """See `Constraint`."""
        if self._then is not None:
            self._then.advance(token)
        self._state = self._state.after(token, self._how)

    def forced(self) -> list[int]:
        """See `Constraint`."""
        if self._state.closing:
            return list(self._state.closing)
        return [] if self._then is None else self._then.forced()

    def valid(self, tokens: Sequence[int]) -> int:
        """See `Constraint`."""
        most = len(tokens) if self._then is None else self._then.valid(tokens)
        state = self._state
        for count, token in enumerate(tokens[:most]):
            if state.closing and token != state.closing[0]:
                return count
            state = state.after(token, self._how)
        return most
