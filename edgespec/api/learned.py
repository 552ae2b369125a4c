"""What texts have taught the draft sources of a loaded bundle, until it is closed."""

from __future__ import annotations

from pathlib import Path

from edgespec.api.drafting import Drafting
from edgespec.api.learning import Learning
from edgespec.bundle import Bundle
from edgespec.runtime.decoding.fair_lock import FairLock
from edgespec.runtime.deployment.options import RECYCLING_DRAFTS, LoadOptions
from edgespec.runtime.drafters import DrafterState, drafter_state
from edgespec.runtime.drafters.drafter_state import AcceptanceCounts
from edgespec.runtime.drafters.successors import Successors


class Learned:
    """Recalls what earlier runs learned, and keeps it for later ones.

    Args:
        bundle: bundle that is loaded.
        options: options it is loaded with.
        lock: lock that is held during each round of a text.

    Attributes:
        state: what the drafts of the next text start from.
        learning: teaches the draft model between texts; None if it does not learn.

    Raises:
        InputError: if a file of the options cannot be used, or there is no draft model to teach.
    """

    def __init__(self, bundle: Bundle, options: LoadOptions, lock: FairLock) -> None:
        self._bundle = bundle
        self._file = None if options.draft_memory is None else Path(options.draft_memory)
        learn = options.learn
        self.learning = None if learn is None else Learning(bundle, Path(learn), lock)
        self.state = self._new(drafter_state.recall(bundle))
        self._kept = self.state  # what is learned after `forget` is lost

    def draft_memory(self, source: str) -> str | None:
        """Returns what `GenerationResult.draft_memory` says of a text with this draft source."""
        if source not in RECYCLING_DRAFTS:
            return None
        return "hot" if len(self.state.successors) else "cold"

    def save(self, path: Path) -> None:
        """Saves what recycling learned, for `LoadOptions.draft_memory`.

        Raises:
            InputError: if the file cannot be written; an existing file stays as it was.
        """
        self.state.successors.save(path, self._bundle.digest)

    def forget(self) -> None:
        """Discards what texts taught; see `LLM.forget`."""
        if self.learning is not None:
            self.learning.forget()
        self.state = self._new()

    def keep(self, drafting: Drafting) -> None:
        """Stores what texts taught, when no more will be made."""
        drafting.keep(self._kept)
        if self.learning is not None:
            self.learning.finish()

    def _new(self, acceptance: AcceptanceCounts | None = None) -> DrafterState:
        learner = None if self.learning is None else self.learning.learner
        return DrafterState(self._successors(), acceptance, learner)

    def _successors(self) -> Successors:
        vocab_size = self._bundle.target.vocab_size
        if self._file is None or not self._file.exists():
            return Successors(vocab_size)
        return Successors.load(self._file, self._bundle.digest, vocab_size)
