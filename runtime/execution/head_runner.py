"""The state of one text in a draft head."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.runtime.arrays import Floats
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Results, Runner, common_beginning
from edgespec.runtime.execution.snapshot import Snapshot


class HeadRunner(Runner):
    """The state of one text in a draft head, whose rows read features of the target.

    The row of position i reads the features of the token there, and the embedding of the token
    after it. So a text of n tokens, the last of which the target has not read, gives n - 1 rows.
    Features are kept for some time only (`FeatureWindow`), so the rows may begin within the text.

    Attributes:
        text: the tokens of the text as far as they were read.
        first: position of the first row.
    """

    def restart(self) -> None:
        """See `Runner`."""
        self.text: list[int] = []
        self.first = 0
        # Rows at the end that a draft has run, and that so read the head's own hidden rows.
        self._drafted_rows = 0
        super().restart()

    @property
    def next(self) -> int:
        """The first position whose features were not read."""
        return self.first + self.length - self._drafted_rows

    def begin_at(self, position: int) -> None:
        """Forget all rows; the next ones begin at this position."""
        self._keep_first(0, 1)
        self.text, self.first, self._drafted_rows = [], position, 0

    def keep_common(self, text: Sequence[int]) -> None:
        """Forget the rows that a text does not share.

        The tokens before the first row count, since the target's features depend on them.
        """
        shared = common_beginning(self.text, text)
        rows = min(shared - 1, self.next) - self.first
        if rows < 1:
            self.begin_at(0)
            return
        self._keep_first(rows, len(text))
        self.text, self._drafted_rows = self.text[:shared], 0

    def read(self, text: Sequence[int], features: Floats) -> Results:
        """Run the rows of a text that were not run, or only by a draft.

        Args:
            text: the whole text, which continues what was read.
            features: [n, F] features of the positions from `next` to that before the last token.

        Returns:
            The results for the last row, [1, …] each, valid until the next call.
        """
        known = self.next
        if self._drafted_rows:
            self._keep_first(known - self.first, len(text))
            self._drafted_rows = 0
        self.text = list(text)
        return self.prefill(text[known + 1 :], features)

    def keep(self, text: Sequence[int], drafts: Sequence[int] = ()) -> None:
        """See `Runner`; the rows of the text count as drafted until `read` replaces them."""
        super().keep(text, drafts)
        self._drafted_rows += len(text)

    def snapshot(self, length: int) -> Snapshot:
        """See `Runner`; the tokens are those of the text."""
        rows = self.next - self.first
        caches = super().snapshot(rows).caches
        return Snapshot(self.text[: self.next + 1] if rows else [], caches).first(length)

    def restore(self, snapshot: Snapshot) -> None:
        """See `Runner`."""
        self.begin_at(0)
        rows = snapshot.caches[0].shape[3]
        if rows and snapshot.tokens:
            self._load(snapshot.caches, rows)
            self.text = list(snapshot.tokens)
            self.first = len(self.text) - 1 - rows
            self.tokens.extend(self.text[self.first + 1 :])

    def fits(self, snapshot: Snapshot) -> bool:
        """See `Runner`."""
        shapes = {each.shape[3:4] for each in snapshot.caches}
        rows = max((shape[0] for shape in shapes if shape), default=0)
        return rows < max(1, len(snapshot.tokens)) and self._caches_fit(snapshot.caches, rows)


def new_runner(model: Model) -> Runner:
    """Returns the state of an empty text in a model, of the kind that the model needs."""
    return HeadRunner(model) if model.role.is_head else Runner(model)
