"""Predicted outputs: drafts from a text that the caller expects, such as a file before an edit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Bins, Calibration
from edgespec.runtime.drafters.alignment import Alignment, Expected
from edgespec.runtime.drafters.base import Drafter, SteppingDrafter, TreeBudget, drafting
from edgespec.runtime.drafters.prediction import Prediction
from edgespec.runtime.execution.steps import Steps
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.runtime.trees.walk import Verdict

_LENGTHS = Bins((1, 2, 3, 5, 8, 16, 32))  # of matches; each is one cell
_LIKELY = 0.5  # acceptance of the first token from which on no other drafter is asked
_FAR = 16  # added to the cells of places far from what the text has surely followed
_EDITS, _MOST_REPEATS = 32, 4  # first cell of edits that are made again, by how often they were


class PredictionDrafter:
    """Copies a predicted text from where the text stands in it, with the edits made so far.

    The text is expected to begin where the prediction does; `Alignment` says how it goes on. Of
    each way on the nodes are proposed that are worth their rows, mostly one long chain. Acceptance
    is counted at every token of the text, drafted or not.

    Args:
        prediction: the predicted text.
        calibration: acceptance by match length, apart for places nearby and far away, and of edits
            by the number of times that they were made.
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
        """See `Drafter`."""
        proposal = Proposal()
        self.extend(proposal, text, budget)
        return proposal.best(budget.max_nodes)  # each way on may have taken all of them

    def extend(self, proposal: Proposal, text: Sequence[int], budget: TreeBudget) -> None:
        """Add a chain for each way on to a proposal."""
        self._read(text[self._length :])
        for path in self._alignment.paths():
            node, value = ROOT, 1.0
            for expected in islice(path, min(budget.max_nodes, budget.max_depth)):
                value *= self._acceptance(expected)
                if value < budget.least_value:
                    break
                node = proposal.add(node, expected.token, value, self.name)

    def draft_ahead(self) -> bool:
        """See `Drafter`: there is nothing to do."""
        return False

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`; the new text is read at the next draft."""

    def _read(self, tokens: Sequence[int]) -> None:
        """Record whether each token would have been proposed, then follow it."""
        alignment = self._alignment
        for token in tokens:
            for expected in alignment.expected:
                self._calibration.observe(self._cell(expected), expected.token == token)
            alignment.read(token)
        self._length += len(tokens)

    def _acceptance(self, expected: Expected) -> float:
        seen = expected.repeats or expected.length + 1
        return self._calibration.acceptance(self._cell(expected), seen / (seen + 1))

    def _cell(self, expected: Expected) -> int:
        if expected.repeats:
            return _EDITS + min(expected.repeats, _MOST_REPEATS)
        return _LENGTHS(expected.length) + (0 if expected.near else _FAR)


class PredictedDrafter(SteppingDrafter):
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

    def drafting(self, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        """See `Drafter.draft`."""
        proposal = self._prediction.draft(text, budget)
        self._asked = not proposal.values or proposal.values[0] < _LIKELY
        return (yield from drafting(self._drafter, text, budget)) if self._asked else proposal

    def draft_ahead(self) -> bool:
        """See `Drafter`; only a drafter that was asked has something to continue."""
        return self._asked and self._drafter.draft_ahead()

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`."""
        if self._asked:
            self._drafter.observe(verdict, tree, logits)
