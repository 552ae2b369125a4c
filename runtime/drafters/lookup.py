"""Prompt lookup: copies what followed an earlier occurrence of a sequence's end (Saxena, 2023)."""

from __future__ import annotations

from collections.abc import Iterable

from edgespec.runtime.drafters.acceptance import Bins, Calibration
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import Plan
from edgespec.runtime.speculation.schedule import Scheduled
from edgespec.runtime.speculation.tree import ROOT

_SHORTEST_MATCH = 2  # a single equal token says little
_LENGTHS = Bins((3, 4, 5, 7, 10, 16, 32))  # of match lengths; each is one cell


class LookupDrafter:
    """Copies what followed the longest earlier match of the sequence's end, in prompt and output.

    A suffix automaton finds the match in constant time (Hu et al., SAM Decoding, 2024). Each
    accepted token makes the match one token longer, so the match length alone tells how likely the
    next token is. The acceptance of each match length is counted at every token.
    """

    name = "lookup"

    def __init__(self) -> None:
        self._read = dict[Generation, SuffixAutomaton]()
        self.forget()

    def begin(self, generation: Generation) -> bool:
        """See `Drafter`. Repetitions within the prompt are learned from as well."""
        if not generation.drafts_by(self.name):
            return False
        self._read[generation] = SuffixAutomaton()
        return True

    def draft(self, plan: Plan) -> None:
        """See `Drafter`. The proposal is a chain."""
        for part in plan.drafting:
            known = self._read.get(part.generation)
            if known is not None:
                self._learn(known, part.generation)
                self._extend(known, part, plan.least_value)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`; new tokens are read at the next draft."""

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""
        del self._read[generation]

    def forget(self) -> None:
        """See `Drafter`."""
        self._calibrations = Calibration(), Calibration()  # of greedy and of sampled tokens

    def _learn(self, known: SuffixAutomaton, generation: Generation) -> None:
        """Records whether each token would have been proposed, and reads it."""
        calibration = self._of(generation)
        for token in generation.tokens[len(known) :]:
            if known.match_length >= _SHORTEST_MATCH:
                calibration.observe(_LENGTHS(known.match_length), known.expected == token)
            known.extend((token,))

    def _extend(self, known: SuffixAutomaton, part: Scheduled, least: float) -> None:
        length, node, value = known.match_length, ROOT, 1.0
        if length < _SHORTEST_MATCH:
            return
        calibration = self._of(part.generation)
        count = min(part.depth, part.most_nodes)
        for further, token in enumerate(known.continuation(count), length):
            value *= calibration.acceptance(_LENGTHS(further), further / (further + 2))
            if value < least:
                break
            node = part.proposal.add(node, token, value, self.name)

    def _of(self, generation: Generation) -> Calibration:
        return self._calibrations[generation.is_sampled]


_ROOT = 0  # the empty string
_NONE = -1  # suffix link of the root
_REFRESHED = 16  # states that each token marks as seen; source code seldom has more than 9 links


class SuffixAutomaton:
    """Finds the longest suffix of a text that occurred earlier.

    Appending a token takes amortized constant time. A text of n tokens has at most 2 n states and 3
    n transitions: about 500 bytes per token.

    Attributes:
        match_length: Number of tokens of the longest suffix of the text that also ends before the
            text's end (the two may overlap); 0 if there is none.
        match_end: Index just after such an earlier occurrence, so that text[match_end] is what
            followed; 0 without a match. It is the most recent occurrence, except perhaps where 16
            or more longer suffixes, each seen at different earlier places, end with the match
            (after long runs of one token, and hardly anywhere else). While the text continues as
            expected, it moves along by one or to a later occurrence.
    """

    __slots__ = (
        "_last", "_latest", "_lengths", "_links", "_moves", "_text", "match_end", "match_length",
    )  # fmt: skip

    def __init__(self) -> None:
        self._text: list[int] = []
        # By state: the length of its longest string, its suffix link, where its strings were last
        # seen to end, and the next state for each token.
        self._lengths = [0]
        self._links = [_NONE]
        self._latest = [0]
        self._moves: list[dict[int, int]] = [{}]
        self._last = _ROOT  # the state of the whole text
        self.match_length = 0
        self.match_end = 0

    def __len__(self) -> int:
        return len(self._text)

    @property
    def expected(self) -> int | None:
        """Token that followed the earlier occurrence; None without a match."""
        return self._text[self.match_end] if self.match_length else None

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._append(token)

    def continuation(self, count: int) -> list[int]:
        """Returns the tokens that followed the earlier occurrence.

        Where they reach the end of the text, they go on with the predicted tokens, so the text from
        `match_end` on is repeated.

        Args:
            count: Number of tokens, at least 0.

        Returns:
            `count` tokens, or none without a match.
        """
        if not self.match_length:
            return []
        followed = self._text[self.match_end : self.match_end + count]
        repeats = -(-count // len(followed)) if followed else 0
        return (followed * repeats)[:count]

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Appends a token to another text, and finds its longest suffix that occurs in this one.

        It takes amortized constant time.

        Args:
            state: state of the suffix before; 0 for an empty text.
            length: number of tokens of the suffix before; 0 for an empty text.
            token: token that is appended.

        Returns:
            State and length of the suffix with the token.
        """
        while token not in self._moves[state]:
            if state == _ROOT:
                return _ROOT, 0
            state = self._links[state]
            length = self._lengths[state]
        return self._moves[state][token], length + 1

    def end(self, state: int) -> int:
        """Returns the index just after some occurrence of a state's strings."""
        return self._latest[state]

    def _append(self, token: int) -> None:
        self._text.append(token)
        end = len(self._text)
        state, self._last = self._last, self._add(end, end, {})
        moves, links = self._moves, self._links
        # Suffixes that this token never followed before get a transition for it.
        while state != _NONE and token not in moves[state]:
            moves[state][token] = self._last
            state = links[state]
        match = _ROOT if state == _NONE else self._reach(state, token)
        links[self._last] = match
        self.match_length = self._lengths[match]
        self.match_end = self._latest[match]
        self._mark(match, end)

    def _reach(self, state: int, token: int) -> int:
        """Returns the state of `state`'s longest string plus `token`, splitting one if needed."""
        target = self._moves[state][token]
        length = self._lengths[state] + 1
        if self._lengths[target] == length:
            return target
        # Only the shorter strings of the target end here again, so they get a state of their own.
        shorter = self._add(length, self._latest[target], self._moves[target].copy())
        self._links[shorter] = self._links[target]
        self._links[target] = shorter
        while state != _NONE and self._moves[state].get(token) == target:
            self._moves[state][token] = shorter
            state = self._links[state]
        return shorter

    def _add(self, length: int, end: int, moves: dict[int, int]) -> int:
        self._lengths.append(length)
        self._links.append(_NONE)
        self._latest.append(end)
        self._moves.append(moves)
        return len(self._lengths) - 1

    def _mark(self, state: int, end: int) -> None:
        """Note that the strings of a state and of its suffix links end here."""
        latest, links = self._latest, self._links
        for _ in range(_REFRESHED):
            if state == _ROOT:
                break
            latest[state] = end
            state = links[state]
