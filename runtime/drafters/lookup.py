"""Prompt lookup: copies what followed an earlier occurrence of the text's end (Saxena, 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Bins, Calibration
from edgespec.runtime.drafters.automaton import SuffixAutomaton
from edgespec.runtime.drafters.base import TreeBudget
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.runtime.trees.walk import Verdict

_SHORTEST_MATCH = 2  # a single equal token says little
_LENGTHS = Bins((3, 4, 5, 7, 10, 16, 32))  # of match lengths; each is one cell


class LookupDrafter:
    """Copies what followed the longest earlier match of the text's end, in prompt and output.

    A suffix automaton finds the match in constant time (Hu et al., SAM Decoding, 2024). Each
    accepted token makes the match one token longer, so the match length alone tells how likely the
    next token is. The acceptance of each match length is counted at every token of the text.

    Args:
        calibration: acceptance by match length.
    """

    name = "lookup"

    _text: SuffixAutomaton  # from `begin` on

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`. Repetitions within the prompt count as well."""
        self._text = SuffixAutomaton()
        self._length = 0
        self._read(prompt)

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter`. The proposal is a chain, cut where nodes are not worth their rows."""
        proposal = Proposal()
        self.extend(proposal, text, budget)
        return proposal

    def extend(self, proposal: Proposal, text: Sequence[int], budget: TreeBudget) -> None:
        """Add the chain to a proposal."""
        self._read(text[self._length :])
        length = self._text.match_length
        if length >= _SHORTEST_MATCH:
            node, value = ROOT, 1.0
            tokens = self._text.continuation(min(budget.max_nodes, budget.max_depth))
            for further, token in enumerate(tokens):
                value *= self._acceptance(length + further)
                if value < budget.least_value:
                    break
                node = proposal.add(node, token, value, self.name)

    def draft_ahead(self) -> bool:
        """See `Drafter`: there is nothing to do."""
        return False

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`; the new text is read at the next draft."""

    def _read(self, tokens: Sequence[int]) -> None:
        """Record whether each token would have been proposed, then append it to the text."""
        text = self._text
        for token in tokens:
            if text.match_length >= _SHORTEST_MATCH:
                self._calibration.observe(_LENGTHS(text.match_length), text.expected == token)
            text.extend((token,))
        self._length += len(tokens)

    def _acceptance(self, length: int) -> float:
        return self._calibration.acceptance(_LENGTHS(length), length / (length + 2))
