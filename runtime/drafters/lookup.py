"""Lookup: copies what followed an earlier occurrence of a sequence's end (Saxena, 2023)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from edgespec.runtime.drafters.acceptance import Acceptances, Bins
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.schedule import PassPart
from edgespec.runtime.speculation.tree import ROOT

_SHORTEST_MATCH = 2  # a single equal token says little
_LENGTHS = Bins((3, 4, 5, 7, 10, 16, 32))  # of match lengths; each is one cell
_EARLIER = 16  # added to the cells of what earlier sequences said


class LookupDrafter:
    """Copies what followed the longest earlier match of a sequence's end.

    It is looked for in the sequence's own prompt and output, by a suffix automaton in constant time
    (Hu et al., SAM Decoding, 2024), and in what earlier sequences of the same salt said
    (`History`). Each accepted token makes a match one token longer, so the match length alone tells
    how likely the next token is. The acceptance of each match length is counted at every token.
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

    def draft(self, plan: PassPlan) -> None:
        """See `Drafter`. Of each of both matches a chain is proposed, of the longer one first."""
        for part in plan.drafting:
            known = self._read.get(part.generation)
            if known is not None:
                matches = _Matches(part.generation, known, self._history)
                unread = part.generation.tokens[len(known) :]
                self._acceptances.of(part.generation).count(unread, matches)
                self._extend(matches, part, plan.least_value)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`; new tokens are read at the next draft."""

    def end(self, generation: Generation) -> None:
        """See `Drafter`: what was said is kept for later sequences."""
        del self._read[generation]
        prompt = len(generation.request.prompt)
        self._history.add(generation.sequence.salt, generation.tokens, prompt)

    def forget(self) -> None:
        """See `Drafter`."""
        self._acceptances = Acceptances()
        self._history = History()

    def _extend(self, matches: _Matches, part: PassPart, least: float) -> None:
        count = min(part.depth, part.most_nodes)
        table = self._acceptances.of(part.generation)
        for length, chain, cells in matches.chains(count):
            if length < _SHORTEST_MATCH:
                continue
            node, value = ROOT, 1.0
            for further, token in enumerate(chain, length):
                prior = further / (further + 2)
                value *= table.acceptance(cells + _LENGTHS(further), prior)
                if value < least:
                    break
                node = part.proposal.add(node, token, value, self.name)


class _Matches:
    """What a sequence's own tokens and earlier sequences say of what follows it.

    Args:
        generation: whose sequence.
        own: the automaton of its tokens, up to the last one that was read.
        history: what earlier sequences said.
    """

    def __init__(self, generation: Generation, own: SuffixAutomaton, history: History) -> None:
        self._generation = generation
        self._own = own
        self._history = history

    def edges(self) -> Iterator[tuple[int, int]]:
        """See `Expectation`. The prompt is nothing that earlier sequences could have said."""
        own = self._own
        if own.expected is not None and own.match_length >= _SHORTEST_MATCH:
            yield own.expected, _LENGTHS(own.match_length)
        if len(own) >= len(self._generation.request.prompt):
            length, followed = self._earlier(1)
            if length:
                yield followed[0], _EARLIER + _LENGTHS(length)

    def follow(self, token: int) -> bool:
        """See `Expectation`."""
        self._own.extend((token,))
        return True

    def chains(self, count: int) -> list[tuple[int, list[int], int]]:
        """Returns both matches, the longer one first.

        Args:
            count: number of tokens of a chain at most.

        Returns:
            Of each its length, the tokens that followed, and what is added to its cells.
        """
        own = self._own.match_length, self._own.continuation(count), 0
        earlier = *self._earlier(count), _EARLIER
        return sorted((own, earlier), key=lambda each: -each[0])

    def _earlier(self, count: int) -> tuple[int, list[int]]:
        generation = self._generation
        place = len(self._own)
        end = generation.tokens[max(0, place - _LONGEST) : place]
        return self._history.match(generation.sequence.salt, end, count)


_SAID = 1 << 16  # tokens that are kept, with some 250 bytes for each: 16 MB
_KEYS = (12, 4)  # tokens that find a place, the longer ones first
_LONGEST = 32  # tokens of a match; more say nothing new
_BORDER = -1  # behind each sequence


class History:
    """What sequences have said, the latest tokens of them all; found by the tokens before.

    A sequence's end is looked up by its last 12 tokens, then by its last 4, each of which lead to
    where they were said most recently with the same salt.
    """

    def __init__(self, capacity: int = _SAID) -> None:
        self._tokens = array("i", [_BORDER]) * capacity  # a ring
        self._keys = [array("q", bytes(8 * capacity)) for _ in _KEYS]  # those that lead to a place
        self._places: list[dict[int, int]] = [{} for _ in _KEYS]
        self._next = 0

    def add(self, salt: str, tokens: Sequence[int], start: int) -> None:
        """Keeps the tokens from `start` on; those before them only tell where they follow."""
        capacity = len(self._tokens)
        stop = len(tokens)
        first = max(0, start - _LONGEST, stop + 1 - capacity)
        for end in range(first + 1, stop + 2 if start < stop else 0):
            here = self._next
            self._next = (self._next + 1) % capacity
            self._tokens[here] = _BORDER if end > stop else tokens[end - 1]
            for length, keys, places in zip(_KEYS, self._keys, self._places, strict=True):
                if places.get(keys[here]) == here:
                    del places[keys[here]]
                if max(start, first + length) <= end < stop:
                    keys[here] = key = hash((salt, *tokens[end - length : end]))
                    places[key] = here

    def match(self, salt: str, tokens: Sequence[int], count: int) -> tuple[int, list[int]]:
        """Finds what followed the end of a sequence.

        Args:
            salt: whose sequences are looked at.
            tokens: the last tokens of the sequence.
            count: number of tokens to return at most.

        Returns:
            The number of tokens that are alike before the place, and those that follow; 0 and none
            where nothing does.
        """
        kept = self._tokens
        capacity = len(self._tokens)
        for length, places in zip(_KEYS, self._places, strict=True):
            place = places.get(hash((salt, *tokens[-length:])))
            if place is None:
                continue
            alike = 0
            while alike < len(tokens) and kept[place - alike] == tokens[-1 - alike]:
                alike += 1
            followed = list[int]()
            while len(followed) < count:
                token = kept[(place + 1 + len(followed)) % capacity]
                if token == _BORDER:
                    break
                followed.append(token)
            if alike >= length and followed:
                return alike, followed
        return 0, []


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
        state = self._last
        self._last = self._add(end, end, {})
        moves = self._moves
        links = self._links
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
        latest = self._latest
        links = self._links
        for _ in range(_REFRESHED):
            if state == _ROOT:
                break
            latest[state] = end
            state = links[state]
