"""Predicted outputs: drafts from a text that the caller expects, such as a file before an edit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from edgespec.runtime.drafters.acceptance import Bins, Calibration
from edgespec.runtime.drafters.alignment import Alignment, ExpectedToken, Prediction
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.schedule import PassPart
from edgespec.runtime.speculation.tree import ROOT

_LENGTHS = Bins((1, 2, 3, 5, 8, 16, 32))  # of matches; each is one cell
_FAR = 16  # added to the cells of places far from what the sequence has surely followed
_EDITS, _MOST_REPEATS = 32, 4  # first cell of edits that are made again, by how often they were


class PredictionDrafter:
    """Copies `Request.prediction` from where a sequence stands in it, with the edits made so far.

    The new tokens are expected to begin where the prediction does; `Alignment` says how they go on.
    Of each way on a chain is proposed. Acceptance is counted at every token, drafted or not.
    """

    name = "prediction"

    def __init__(self) -> None:
        self._followed = dict[Generation, tuple[Alignment, int]]()  # with the tokens read so far
        self.forget()

    def begin(self, generation: Generation) -> bool:
        """See `Drafter`. Any source but none drafts from a prediction, too."""
        request = generation.request
        if not request.prediction or not generation.drafts:
            return False
        alignment = Alignment(Prediction(request.prediction))
        self._followed[generation] = alignment, len(request.prompt)
        return True

    def draft(self, plan: PassPlan) -> None:
        """See `Drafter`."""
        for part in plan.drafting:
            known = self._followed.get(part.generation)
            if known is not None:
                alignment, length = known
                text = part.generation.tokens
                calibration = self._of(part.generation)
                _follow(alignment, text[length:], calibration)
                self._followed[part.generation] = alignment, len(text)
                _extend(part, alignment, calibration, plan.least_value)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`; new tokens are read at the next draft."""

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""
        del self._followed[generation]

    def forget(self) -> None:
        """See `Drafter`."""
        self._calibrations = Calibration(), Calibration()  # of greedy and of sampled tokens

    def _of(self, generation: Generation) -> Calibration:
        return self._calibrations[generation.is_sampled]


def _follow(alignment: Alignment, tokens: Sequence[int], calibration: Calibration) -> None:
    """Records whether each token would have been proposed, and follows it."""
    for token in tokens:
        for expected in alignment.expected:
            calibration.observe(_cell(expected), expected.token == token)
        alignment.read(token)


def _extend(part: PassPart, alignment: Alignment, calibration: Calibration, least: float) -> None:
    count = min(part.depth, part.most_nodes)
    for path in alignment.paths():
        node, value = ROOT, 1.0
        for expected in islice(path, count):
            seen = expected.repeats or expected.length + 1
            value *= calibration.acceptance(_cell(expected), seen / (seen + 1))
            if value < least:
                break
            node = part.proposal.add(node, expected.token, value, PredictionDrafter.name)


def _cell(expected: ExpectedToken) -> int:
    if expected.repeats:
        return _EDITS + min(expected.repeats, _MOST_REPEATS)
    return _LENGTHS(expected.length) + (0 if expected.near else _FAR)
