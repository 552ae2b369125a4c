"""What texts have taught the draft sources of a loaded bundle, until it is closed."""

from __future__ import annotations

from pathlib import Path

from edgespec.api.drafting import Drafting
from edgespec.bundle import Bundle
from edgespec.runtime.deployment.options import RECYCLING_DRAFTS, LoadOptions
from edgespec.runtime.drafters import DrafterState, drafter_state
from edgespec.runtime.drafters.drafter_state import AcceptanceCounts
from edgespec.runtime.drafters.successors import Successors


class Learned:
    """Recalls what earlier runs learned, and keeps it for later ones.

    Args:
        bundle: bundle that is loaded.
        options: options it is loaded with.

    Attributes:
        state: what the drafts of the next text start from.

    Raises:
        InputError: if the file of `draft_memory` cannot be used.
    """

    def __init__(self, bundle: Bundle, options: LoadOptions) -> None:
        self._bundle = bundle
        self._file = None if options.draft_memory is None else Path(options.draft_memory)
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
        self.state = self._new()

    def keep(self, drafting: Drafting) -> None:
        """Stores what texts taught, when no more will be made."""
        drafting.keep(self._kept)

    def _new(self, acceptance: AcceptanceCounts | None = None) -> DrafterState:
        return DrafterState(self._successors(), acceptance)

    def _successors(self) -> Successors:
        vocab_size = self._bundle.target.vocab_size
        if self._file is None or not self._file.exists():
            return Successors(vocab_size)
        return Successors.load(self._file, self._bundle.digest, vocab_size)
