"""Prompt lookup: copies what followed an earlier occurrence of a sequence's end (Saxena, 2023)."""

from __future__ import annotations

from edgespec.runtime.drafters.acceptance import Bins, Calibration
from edgespec.runtime.drafters.automaton import SuffixAutomaton
from edgespec.runtime.drafters.base import Reading
from edgespec.runtime.speculation.generation import Generation
from edgespec.runtime.speculation.plan import Plan, Scheduled
from edgespec.runtime.trees.tree import ROOT

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

    def begin(self, generation: Generation) -> None:
        """See `Drafter`. Repetitions within the prompt are learned from as well."""
        if generation.drafts_by(self.name):
            self._read[generation] = SuffixAutomaton()

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
        self._read.pop(generation, None)

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
