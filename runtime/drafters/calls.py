"""How a drafter's passes are made: by a model of its own, or by stages of the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from edgespec.runtime.drafters.ranking import Candidates
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.execution.paths import StagePath
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.sampling.sampler import Sampler

_MOST_CANDIDATES = 128  # of a sampled text: noise can lift an unlikely token to the top
_FEW_CANDIDATES = 32  # of a greedy one


class Calls(Protocol):
    """Passes over one text and what is drafted behind it."""

    @property
    def root(self) -> tuple[int, ...]:
        """The scratch rows that the end of the text takes, while something is drafted."""

    @property
    def apart(self) -> bool:
        """Whether drafts can go on while the target verifies, and their rows last beyond it."""

    @property
    def most_rows(self) -> int:
        """Of one call."""

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """A new text starts; `sampler` is the target's."""

    def restart(self) -> None:
        """Forget what was run of the text: it may be damaged."""

    def slide(self, length: int) -> bool:
        """Make room behind a text of so many tokens.

        Returns:
            Whether rows had to go for it, drafted ones too.
        """

    def room(self, length: int, width: int) -> int:
        """Tokens one after the other that may be drafted behind a text of this many.

        Args:
            length: of the text; there was a `slide` to it.
            width: rows of a call at most.
        """

    def unread(self, text: Sequence[int]) -> list[int]:
        """Rows of each call that `feed` will make."""

    def feed(self, text: Sequence[int]) -> Candidates:
        """What may follow the text."""

    def level(self, rows: Rows) -> Candidates:
        """What may follow these rows, which stay as scratch rows for deeper levels."""

    def keep(self, text: Sequence[int], drafts: Sequence[int]) -> None:
        """Scratch rows became text; of the others only `drafts`, behind them, are to stay."""


class ModelCalls:
    """A smaller model of the same vocabulary, with a cache of its own.

    Of a text that its context cannot hold it sees the end: half a context of it at least, in
    windows that begin where multiples of that half do, so that few tokens are read again.

    Args:
        runner: the window in the draft model; what it holds of an earlier one is used again.
    """

    root = ()
    apart = True

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.most_rows = runner.model.shapes.rows[-1]
        self._context = runner.model.role.context_length
        self._first = 0  # of the text's tokens, where the window begins

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Calls`. What is new of the prompt is fed at the first draft."""
        self._first = self._beginning(len(prompt) + 1)
        self._runner.resume(prompt[self._first :])

    def restart(self) -> None:
        """See `Calls`."""
        self._runner.restart()

    def slide(self, length: int) -> bool:
        """See `Calls`: the window moves on where the text has filled it."""
        first = self._beginning(length)
        moved = first != self._first
        if moved:
            self._first = first
            self._runner.resume(())
        return moved

    def room(self, length: int, width: int) -> int:
        """See `Calls`: up to the end of the draft model's context."""
        return self._context - (length - self._first)

    def unread(self, text: Sequence[int]) -> list[int]:
        """See `Calls`: the tokens of the window that are new to the model."""
        first = self._beginning(len(text))
        known = self._runner.length if first == self._first else 0
        return self._runner.chunks(len(text) - first - known)

    def feed(self, text: Sequence[int]) -> Candidates:
        """See `Calls`."""
        return Candidates.of(self._runner.prefill(text[self._first + self._runner.length :]), 1)

    def level(self, rows: Rows) -> Candidates:
        """See `Calls`."""
        return Candidates.of(self._runner.draft(rows), len(rows.tokens))

    def keep(self, text: Sequence[int], drafts: Sequence[int]) -> None:
        """See `Calls`."""
        self._runner.keep(text, drafts)

    def _beginning(self, length: int) -> int:
        """Where the window of a text begins, so that a token has room behind it."""
        beyond = max(0, length + 1 - self._context)
        half = max(1, self._context // 2)
        return -(-beyond // half) * half


class SkipCalls:
    """The target itself, some of its stages left out (Zhang et al., Draft & Verify, 2023).

    The text's keys and values are the target's own, so nothing is fed but the pending token, and
    the runner's next `verify` and `commit` tidy up after the draft.

    Args:
        runner: the text in the target.
        path: the stages to run.
    """

    root = (0,)
    apart = False

    def __init__(self, runner: Runner, path: StagePath) -> None:
        self._runner = runner
        self._path = path
        self.most_rows = runner.model.shapes.rows[-1]

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Calls`."""
        plain = sampler.options.temperature == 0 and not sampler.reads_context
        self._count = _FEW_CANDIDATES if plain else _MOST_CANDIDATES
        self._vocab_size = sampler.vocab_size

    def restart(self) -> None:
        """See `Calls`: the next draft begins with the pending token anyway."""

    def slide(self, length: int) -> bool:
        """See `Calls`: the target's context ends the text before its drafts."""
        return False

    def room(self, length: int, width: int) -> int:
        """See `Calls`: as many levels as the cache has rows for, behind the pending token's.

        It would grow for more, beyond what was planned.
        """
        return (self._runner.room - length) // width + 1

    def unread(self, text: Sequence[int]) -> list[int]:
        """See `Calls`: the pending token."""
        return [1]

    def feed(self, text: Sequence[int]) -> Candidates:
        """See `Calls`."""
        self._runner.forget_scratch()
        return self.level(Rows([text[-1]], [0], np.ones((1, 1), np.bool_), [START]))

    def level(self, rows: Rows) -> Candidates:
        """See `Calls`."""
        logits = self._runner.draft(rows, self._path)["logits"][: len(rows.tokens)]
        return Candidates.pick(logits, self._vocab_size, self._count)

    def keep(self, text: Sequence[int], drafts: Sequence[int]) -> None:
        """See `Calls`: the target's own commit keeps what became text."""
