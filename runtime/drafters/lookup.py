"""Prompt lookup: what followed the last time the text ended like this (Saxena, 2023)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from edgespec.runtime.drafters.base import TreeBudget
from edgespec.runtime.sampling import Sampler
from edgespec.runtime.tree import TokenTree
from edgespec.runtime.verify import Verdict

_SHORTEST = 2  # a single equal token says little
_CANDIDATES = 16  # of the latest occurrences, how many are compared


class LookupDrafter:
    """Copies what followed the longest earlier match of the text's end, in prompt and output.

    Ends of pairs are indexed as the text grows, so that a draft costs the same at any length.
    """

    name = "lookup"

    def __init__(self) -> None:
        self._text: list[int] = []
        self._ends: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._text.clear()
        self._ends.clear()

    def draft(self, text: Sequence[int], budget: TreeBudget) -> TokenTree:
        """See `Drafter`."""
        # The pair that ends the text is looked up before it is indexed itself.
        self._index(text[len(self._text) : -1])
        best, length = 0, 0
        for end in self._ends.get(tuple(text[-_SHORTEST:]), [])[: -_CANDIDATES - 1 : -1]:
            match = self._match(text, end)
            if match > length:
                best, length = end, match
        count = min(budget.max_nodes, budget.max_depth)
        return TokenTree.chain(text[best : best + count] if length else ())

    def observe(self, verdict: Verdict) -> None:
        """See `Drafter`; the new text is seen at the next draft."""

    def _index(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._text.append(token)
            self._ends[tuple(self._text[-_SHORTEST:])].append(len(self._text))

    @staticmethod
    def _match(text: Sequence[int], end: int) -> int:
        """How many tokens before `end` equal the text's last ones."""
        length = 0
        while length < end and text[end - 1 - length] == text[-1 - length]:
            length += 1
        return length
