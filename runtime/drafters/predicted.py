"""Predicted outputs: drafts from a text that the caller expects, such as a file before an edit."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Bins, Calibration
from edgespec.runtime.drafters.alignment import Alignment, Prediction
from edgespec.runtime.drafters.base import Drafter, TreeBudget
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.runtime.trees.walk import Verdict

_LENGTHS = Bins((1, 2, 3, 5, 8, 16, 32))  # of matches; each is one cell
_LIKELY = 0.5  # acceptance of the first token from which on no other drafter is asked
_BEHIND = 16  # added to the cells of places that the text has passed already


class PredictionDrafter:
    """Copies a predicted text from where the text stands in it (see `Alignment`).

    The chain begins with the prediction's first token, and is as long as its nodes are worth their
    rows. The acceptance of each match length is counted at every token of the text.

    Args:
        prediction: the predicted text.
        calibration: acceptance by match length, and by whether the place was passed already.
    """

    name = "prediction"

    _alignment: Alignment  # from `begin` on

    def __init__(self, prediction: Prediction, calibration: Calibration) -> None:
        self._prediction = prediction
        self._calibration = calibration

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`. The prompt is no part of what was predicted."""
        self._alignment = Alignment(self._prediction)
        self._length = len(prompt)

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter`. The proposal is a chain, cut where nodes are not worth their rows."""
        proposal = Proposal()
        self.extend(proposal, text, budget)
        return proposal

    def extend(self, proposal: Proposal, text: Sequence[int], budget: TreeBudget) -> None:
        """Add the chain to a proposal."""
        self._read(text[self._length :])
        place, most = self._alignment.place, min(budget.max_nodes, budget.max_depth)
        if place is None:
            return
        node, value = ROOT, 1.0
        for further, token in enumerate(self._prediction.tokens[place : place + most]):
            value *= self._acceptance(self._alignment.length + further)
            if value < budget.least_value:
                break
            node = proposal.add(node, token, value, self.name)

    def draft_ahead(self) -> bool:
        """See `Drafter`: there is nothing to do."""
        return False

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`; the new text is read at the next draft."""

    def _read(self, tokens: Sequence[int]) -> None:
        """Record whether each token would have been proposed, then follow it."""
        alignment = self._alignment
        for token in tokens:
            expected = alignment.expected
            if expected is not None:
                self._calibration.observe(self._cell(alignment.length), expected == token)
            alignment.read(token)
        self._length += len(tokens)

    def _acceptance(self, length: int) -> float:
        return self._calibration.acceptance(self._cell(length), (length + 1) / (length + 2))

    def _cell(self, length: int) -> int:
        return _LENGTHS(length) + (0 if self._alignment.ahead else _BEHIND)


class PredictedDrafter:
    """Drafts from a prediction, and by another drafter where that has nothing likely to propose.

    Args:
        prediction: drafts from the prediction.
        drafter: is asked in the other rounds; it does not plan.
    """

    def __init__(self, prediction: PredictionDrafter, drafter: Drafter) -> None:
        self.name = drafter.name
        self._prediction = prediction
        self._drafter = drafter
        self._asked = False

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._prediction.begin(prompt, sampler)
        self._drafter.begin(prompt, sampler)

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter`."""
        proposal = self._prediction.draft(text, budget)
        self._asked = not proposal.values or proposal.values[0] < _LIKELY
        return self._drafter.draft(text, budget) if self._asked else proposal

    def draft_ahead(self) -> bool:
        """See `Drafter`; only a drafter that was asked has something to continue."""
        return self._asked and self._drafter.draft_ahead()

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`."""
        if self._asked:
            self._drafter.observe(verdict, tree, logits)
