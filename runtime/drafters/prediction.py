"""Predicted outputs: drafts from a text that the caller expects, such as a file before an edit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from edgespec.runtime.drafters.acceptance import Acceptances, AcceptanceTable, Bins
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
        self._followed = dict[Generation, _FollowedText]()
        self.forget()

    def begin(self, generation: Generation) -> bool:
        """See `Drafter`. Any source but none drafts from a prediction, too."""
        request = generation.request
        if not request.prediction or not generation.drafts:
            return False
        alignment = Alignment(Prediction(request.prediction))
        self._followed[generation] = _FollowedText(alignment, len(request.prompt))
        return True

    def draft(self, plan: PassPlan) -> None:
        """See `Drafter`."""
        for part in plan.drafting:
            followed = self._followed.get(part.generation)
            if followed is not None:
                table = self._acceptances.of(part.generation)
                table.count(part.generation.tokens[followed.length :], followed)
                _extend(part, followed.alignment, table, plan.least_value)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`; new tokens are read at the next draft."""

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""
        del self._followed[generation]

    def forget(self) -> None:
        """See `Drafter`."""
        self._acceptances = Acceptances()


@dataclass
class _FollowedText:
    """A prediction, and how far a sequence was followed through it.

    Attributes:
        alignment: where the sequence stands in it.
        length: number of the sequence's tokens so far, with its prompt.
    """

    alignment: Alignment
    length: int

    def edges(self) -> list[tuple[int, int]]:
        """See `Expectation`."""
        return [(each.token, _cell(each)) for each in self.alignment.expected]

    def follow(self, token: int) -> bool:
        """See `Expectation`."""
        self.alignment.read(token)
        self.length += 1
        return True


def _extend(part: PassPart, alignment: Alignment, table: AcceptanceTable, least: float) -> None:
    count = min(part.depth, part.most_nodes)
    for path in alignment.paths():
        node, value = ROOT, 1.0
        for expected in islice(path, count):
            seen = expected.repeats or expected.length + 1
            value *= table.acceptance(_cell(expected), seen / (seen + 1))
            if value < least:
                break
            node = part.proposal.add(node, expected.token, value, PredictionDrafter.name)


def _cell(expected: ExpectedToken) -> int:
    if expected.repeats:
        return _EDITS + min(expected.repeats, _MOST_REPEATS)
    return _LENGTHS(expected.length) + (0 if expected.near else _FAR)
