"""Finds where a text stands in another one, which it was predicted to be.

While both have the same tokens, they go on side by side. Where they part, the longest suffix of the
text that the prediction holds tells where to go on, as in Aggressive Decoding (Ge et al., 2022).
A place nearby is another candidate, since most edits are small. What was changed is expected to be
changed alike further on.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from edgespec.runtime.drafters.lookup import SuffixAutomaton

_NEAR = 32  # tokens ahead in which a text most likely goes on behind an edit
# Tokens side by side from which on a place is no accident: one nearby, and one that is not.
_SURE, _SURE_AFAR = 3, 16


class ExpectedToken(NamedTuple):
    """A token that is expected.

    Attributes:
        token: the token.
        length: number of tokens before it for which the texts have gone side by side.
        near: whether it is near the last place that was no accident, or has become one itself.
        repeats: number of times that the text has made the edit that begins with this token; 0 if
            none does.
    """

    token: int
    length: int
    near: bool
    repeats: int


class _Track(NamedTuple):
    """A way on: a place in the prediction, or in an edit that is made before it.

    Attributes:
        place: index of the predicted token; the number of predicted tokens at their end.
        length: number of tokens before it for which the texts have gone side by side.
        near: see `ExpectedToken`.
        edit: the edit; None if none is made.
        offset: number of the edit's tokens that came already.
    """

    place: int
    length: int
    near: bool
    edit: Edit | None = None
    offset: int = 0

    @property
    def sure(self) -> bool:
        """Whether the place is no accident."""
        return self.length >= (_SURE if self.near else _SURE_AFAR)

    @property
    def repeats(self) -> int:
        """See `ExpectedToken`."""
        return 0 if self.edit is None or self.offset else self.edit.hits


class Alignment:
    """Follows a text through its prediction.

    Args:
        prediction: the predicted text. The other one begins where it begins.
    """

    def __init__(self, prediction: Prediction) -> None:
        self._prediction = prediction
        self._tokens = prediction.tokens
        self._edits = Edits(prediction.tokens)
        self._tracks = [_Track(0, 0, near=True)]  # the likeliest first
        self._sure = 0  # the last place that was no accident
        self._parted: int | None = None  # place where the texts have parted since
        self._since: list[int] = []  # tokens of the text from there on
        self._end = deque[int](maxlen=_NEAR)  # last tokens of the text
        # The automaton's state for the longest suffix of the text, and its length.
        self._state = self._suffix = 0
        self._followed = bytearray(len(prediction))

    @property
    def followed(self) -> int:
        """Number of predicted tokens that the text had where they were expected."""
        return self._followed.count(1)

    @property
    def expected(self) -> list[ExpectedToken]:
        """What each way on begins with."""
        return [first for path in self.paths() if (first := next(path, None)) is not None]

    def paths(self) -> list[Iterator[ExpectedToken]]:
        """Returns the ways on, the likeliest first, each token by token."""
        return [self._path(track) for track in self._tracks]

    def read(self, token: int) -> None:
        """Append a token to the text."""
        automaton = self._prediction.automaton
        self._state, self._suffix = automaton.follow(self._state, self._suffix, token)
        self._end.append(token)
        if self._parted is not None:
            self._since.append(token)
        going = [track for each in self._tracks for track in self._going(each, token)]
        if going:
            if going[0].edit is None:
                self._followed[going[0].place] = 1
            self._tracks = [self._next(track) for track in going]
        else:
            self._part(token)
            self._tracks = self._found()
        if self._tracks and self._tracks[0].sure:
            self._settle(self._tracks[0])

    def _path(self, track: _Track) -> Iterator[ExpectedToken]:
        while (token := self._token(track)) is not None:
            yield ExpectedToken(token, track.length, track.near, track.repeats)
            track = self._next(track)

    def _going(self, track: _Track, token: int) -> Iterator[_Track]:
        """Yields the track if it goes on with a token, perhaps without the edit that began here."""
        edit = track.edit
        offset = track.offset
        if edit is not None and token != edit.new[offset]:
            edit.misses += 1
            if offset:
                return
            track = track._replace(edit=None)
        elif edit is not None and offset + 1 == len(edit.new):
            edit.hits += 1
        if token == self._token(track):
            yield track

    def _token(self, track: _Track) -> int | None:
        if track.edit is not None:
            return track.edit.new[track.offset]
        return self._tokens[track.place] if track.place < len(self._tokens) else None

    def _next(self, track: _Track) -> _Track:
        place, length, near, edit, offset = track
        if edit is None:
            return _Track(place + 1, length + 1, near, self._edits.at(place + 1))
        if offset + 1 < len(edit.new):
            return _Track(place, length + 1, near, edit, offset + 1)
        return _Track(place + len(edit.old), length + 1, near)  # no edit directly behind another

    def _part(self, token: int) -> None:
        """Note where the texts part, unless they have parted before."""
        if self._parted is None and self._tracks:
            place, _, _, edit, offset = self._tracks[0]
            self._parted = place
            self._since = [*(() if edit is None else edit.new[:offset]), token]

    def _found(self) -> list[_Track]:
        """Returns the places to go on: one nearby, and the one behind the longest suffix."""
        length, place = self._nearby()
        found = [_Track(place, length, near=True)] if length else []
        if self._suffix > length:
            end = self._prediction.automaton.end(self._state)
            place = self._prediction.nearest(end, self._suffix, self._sure)
            found.append(_Track(place, self._suffix, near=False))
        return found

    def _nearby(self) -> tuple[int, int]:
        """Returns the longest suffix of the text a bit ahead of what is sure, and its end."""
        best = (0, 0)
        end = list(self._end)
        for place in range(self._sure + 1, min(self._sure + _NEAR, len(self._tokens)) + 1):
            length = _common_end(self._tokens[max(0, place - _NEAR) : place], end)
            if length > best[0]:
                best = length, place
        return best

    def _settle(self, track: _Track) -> None:
        """Takes a place for sure, and learns what was changed before it."""
        if self._parted is not None:
            start = track.place - track.length
            self._edits.learn(self._parted, start, self._since[: -track.length])
            self._followed[max(start, 0) : track.place] = b"\1" * (track.place - max(start, 0))
            self._parted = None
            if not track.offset:
                track = track._replace(edit=self._edits.at(track.place))
        self._sure = track.place
        self._tracks = [track._replace(near=True)]


def _common_end(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the number of last tokens that are the same in both."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


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
        self._width = packed.itemsize
        self._bytes = packed.tobytes()

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
        old = self._tokens[start:stop]
        known = self._by_first.setdefault(self._tokens[start], [])
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
