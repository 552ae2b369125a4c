"""Edits that a text has made to its prediction, since most are made again, as in a renaming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST_OLD, _LONGEST_NEW = 16, 32  # tokens; longer changes seldom come again
_KEPT = 4  # edits that begin with the same token


@dataclass
class Edit:
    """Tokens of the prediction that the text has replaced, or had others put before them.

    Attributes:
        before: token before them; None at the beginning.
        old: the replaced tokens; empty if tokens were only put in.
        new: the tokens in their place, at least one.
        hits: number of places where the text has done so.
        misses: number of places where it could have, and kept the prediction.
    """

    before: int | None
    old: tuple[int, ...]
    new: tuple[int, ...]
    hits: int = 0
    misses: int = 0


class Edits:
    """The edits of a text.

    Args:
        tokens: the predicted tokens.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tuple(tokens)
        self._by_first: dict[int, list[Edit]] = {}  # by the predicted token, the latest first

    def at(self, place: int) -> Edit | None:
        """Returns the edit to expect before a predicted token; None if there is none."""
        if not self._by_first or place >= len(self._tokens):
            return None
        for edit in self._by_first.get(self._tokens[place], ()):
            if edit.hits > edit.misses and self._fits(edit, place):
                return edit
        return None

    def learn(self, start: int, stop: int, new: Sequence[int]) -> None:
        """Record that the text has `new` where the prediction has the tokens from start to stop."""
        if not 0 <= stop - start <= _LONGEST_OLD or not 0 < len(new) <= _LONGEST_NEW:
            return
        if start == len(self._tokens):
            return
        old, known = self._tokens[start:stop], self._by_first.setdefault(self._tokens[start], [])
        before = self._before(start)
        for edit in known:
            if (edit.old, edit.new) == (old, tuple(new)) and self._fits(edit, start):
                break
        else:
            edit = Edit(before, old, tuple(new))
            known.insert(0, edit)
            del known[_KEPT:]
        edit.hits += 1

    def _fits(self, edit: Edit, place: int) -> bool:
        if not edit.old:
            return edit.before == self._before(place)
        return self._tokens[place : place + len(edit.old)] == edit.old

    def _before(self, place: int) -> int | None:
        return self._tokens[place - 1] if place else None
