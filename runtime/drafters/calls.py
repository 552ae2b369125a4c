"""How a draft model is called: as a model of its own, or as some stages of the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.ranking import Candidates
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.execution.head_runner import HeadRunner
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.paths import StagePath
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.steps import CHUNK, Steps, call
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.shapes import SCRATCH_ROWS

_SAMPLED_CANDIDATES = 128  # per row of a sampled text: noise can lift an unlikely token to the top
_GREEDY_CANDIDATES = 32  # per row of a greedy text

# Rows up to which the end of a text is read in a call with other texts, where each takes as long as
# the one with most rows.
_SHARED_ROWS = 16


class Calls(Protocol):
    """The calls of a draft model for one text and the drafts after it.

    Attributes:
        lost: whether to make no more calls in this text, because they have failed. Set by whoever
            drafts with them.
    """

    lost: bool

    @property
    def root(self) -> tuple[int, ...]:
        """Scratch rows that the last token of the text takes during a draft."""

    @property
    def apart(self) -> bool:
        """Whether drafting can go on while the target verifies, and its rows outlast that."""

    @property
    def most_rows(self) -> int:
        """Largest number of rows of one call."""

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """Start a new text; `sampler` is the target's."""

    def restart(self) -> None:
        """Discard all computed rows of the text, because they may be damaged."""

    def slide(self, text: Sequence[int]) -> bool:
        """Make room after a text.

        Returns:
            Whether rows were discarded for it, drafted ones included.
        """

    def room(self, length: int, width: int) -> int:
        """Returns how many consecutive tokens may be drafted after a text.

        Args:
            length: number of tokens of the text; `slide` was called for it.
            width: largest number of rows of a call.
        """

    def unread(self, text: Sequence[int]) -> list[int]:
        """Returns the number of rows of each call that `feed` will make."""

    def feed(self, text: Sequence[int]) -> Steps[Candidates]:
        """Run the unread end of the text; returns candidates for the token that follows it."""

    def level(self, rows: Rows) -> Steps[Candidates]:
        """Run one level of a draft; its rows stay as scratch rows for deeper levels.

        Returns:
            Candidates for the token that follows each row.
        """

    def keep(self, text: Sequence[int], drafts: Sequence[int]) -> None:
        """Turn scratch rows into text, and keep some of the rows after them.

        Args:
            text: scratch rows that became text.
            drafts: scratch rows after them that stay scratch rows; all others are discarded.
        """


def window(model: Model) -> int:
    """Returns how many tokens of a text a draft sees at most: those that its cache is planned for.

    Without a plan these are as many as its context holds.
    """
    planned, context = model.sizes.cache_rows - SCRATCH_ROWS, model.role.context_length
    return min(context, planned) if planned > 0 else context


class ModelCalls:
    """Calls a smaller model of the same vocabulary, which has a cache of its own.

    Of a text that is longer than its `window` it sees the end, at least half a window. Windows
    begin at multiples of half their size, so few tokens are read again.

    Args:
        runner: the window in the draft model; matching rows of an earlier text are used again.
    """

    root = ()
    apart = True

    def __init__(self, runner: Runner) -> None:
        self.lost = False
        self._runner = runner
        self.most_rows = runner.model.shapes.rows[-1]
        self._window = window(runner.model)
        self._first = 0  # index in the text where the window begins

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Calls`. New tokens of the prompt are fed at the first draft."""
        self._first = self._beginning(len(prompt) + 1)
        self._runner.resume(prompt[self._first :])

    def restart(self) -> None:
        """See `Calls`."""
        self._runner.restart()

    def slide(self, text: Sequence[int]) -> bool:
        """See `Calls`: moves the window on when the text has filled it."""
        first = self._beginning(len(text))
        moved = first != self._first
        if moved:
            self._first = first
            self._runner.resume(())
        return moved

    def room(self, length: int, width: int) -> int:
        """See `Calls`: the room is the rest of the window."""
        return self._window - (length - self._first)

    def unread(self, text: Sequence[int]) -> list[int]:
        """See `Calls`: counts the tokens of the window that are new to the model."""
        first = self._beginning(len(text))
        known = self._runner.length if first == self._first else 0
        return self._runner.chunks(len(text) - first - known)

    def feed(self, text: Sequence[int]) -> Steps[Candidates]:
        """See `Calls`."""
        runner = self._runner
        unread = text[self._first + runner.length :]
        for rows in runner.chunks(len(unread)):
            part, unread = unread[:rows], unread[rows:]
            if rows > _SHARED_ROWS:
                yield CHUNK
                results = runner.prefill(part)
            else:
                runner.forget_scratch()
                results = yield from call(runner, Rows.chain(part, last_only=True))
                runner.commit(range(rows))
        return Candidates.from_results(results, 1)

    def look_ahead(self, text: Sequence[int], masks: Sequence[int]) -> Steps[Candidates]:
        """Run the unread end of the text with mask tokens behind it, in one call.

        The row of the text's last token is run again if the model has run it.

        Args:
            text: tokens so far; `slide` was called for their number.
            masks: tokens that stand for the first ones to come. With the unread end, at most
                `most_rows`.

        Returns:
            Candidates for the token after the text and for those after each mask, [1 + masks].
        """
        self._runner.rewind(len(text) - self._first - 1)
        unread = text[self._first + self._runner.length :]
        results = yield from call(self._runner, Rows.chain([*unread, *masks]))
        self._runner.commit(range(len(unread)))
        wanted = {name: rows[len(unread) - 1 :] for name, rows in results.items()}
        return Candidates.from_results(wanted, 1 + len(masks))

    def level(self, rows: Rows) -> Steps[Candidates]:
        """See `Calls`."""
        results = yield from call(self._runner, rows)
        self._runner.stay()
        return Candidates.from_results(results, len(rows.tokens))

    def keep(self, text: Sequence[int], drafts: Sequence[int]) -> None:
        """See `Calls`."""
        self._runner.keep(text, drafts)

    def _beginning(self, length: int) -> int:
        """Returns where the window of a text begins, so that one more token fits after it."""
        beyond = max(0, length + 1 - self._window)
        half = max(1, self._window // 2)
        return -(-beyond // half) * half


class HeadCalls:
    """Calls a draft head, which reads the target's features of the text (Li et al., EAGLE-3, 2025).

    Each row of a level reads the hidden row that the head gave for the row before it. The rows
    that become text are computed anew from the target's features when the head reads on.

    Args:
        runner: the text in the head; matching rows of an earlier text are used again.
        target: the text in the target, which holds the features of the last positions.
    """

    root = ()
    apart = True

    def __init__(self, runner: HeadRunner, target: Runner) -> None:
        assert target.features is not None
        self.lost = False
        self._runner = runner
        self._features = target.features
        self.most_rows = runner.model.shapes.rows[-1]
        self._window = window(runner.model)
        self._root: Floats = np.zeros((1, runner.model.role.hidden_size), np.float32)
        self._hidden: list[Floats] = []  # of each scratch row

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Calls`. New tokens of the prompt are fed at the first draft."""
        self._runner.keep_common(prompt)
        self._hidden = []

    def restart(self) -> None:
        """See `Calls`."""
        self._runner.restart()
        self._hidden = []

    def slide(self, text: Sequence[int]) -> bool:
        """See `Calls`: begins anew where the window is full, or features are no longer there."""
        first = self._beginning(len(text))
        if first == self._runner.first:
            return False
        self._runner.begin_at(first)
        self._hidden = []
        return True

    def room(self, length: int, width: int) -> int:
        """See `Calls`: the room is the rest of the head's window."""
        return self._window - (length - 1 - self._runner.first)

    def unread(self, text: Sequence[int]) -> list[int]:
        """See `Calls`: counts the positions whose features the head has not read."""
        first = self._beginning(len(text))
        known = self._runner.next if first == self._runner.first else first
        return self._runner.chunks(len(text) - 1 - known)

    def feed(self, text: Sequence[int]) -> Steps[Candidates]:
        """See `Calls`."""
        yield from ()  # no other text shares its calls
        features = self._features.read(self._runner.next, len(text) - 1)
        results = self._runner.read(text, features)
        self._root, self._hidden = results["next_hidden"][0].copy(), []
        return Candidates.from_results(results, 1)

    def level(self, rows: Rows) -> Steps[Candidates]:
        """See `Calls`."""
        yield from ()
        n = len(rows.tokens)
        above = [self._root if row == START else self._hidden[row] for row in rows.parents]
        results = self._runner.draft(rows, hidden=np.stack(above))
        self._hidden += list(results["next_hidden"][:n].copy())
        return Candidates.from_results(results, n)

    def keep(self, text: Sequence[int], drafts: Sequence[int]) -> None:
        """See `Calls`."""
        self._runner.keep(text, drafts)
        if text:
            self._root = self._hidden[text[-1]]
        self._hidden = [self._hidden[row] for row in drafts]

    def _beginning(self, length: int) -> int:
        """Returns the position of the first row of a text, so that one more row fits after it."""
        runner, held = self._runner, self._features.start
        if length - runner.first > self._window:
            return max(held, length - max(1, self._window // 2))
        return runner.first if held <= runner.next else held


class SkipCalls:
    """Calls the target itself without some of its stages (Zhang et al., Draft & Verify, 2023).

    The text's keys and values are the target's own, so only the pending token is fed. The runner's
    next `verify` and `commit` clean up after the draft.

    Args:
        runner: the text in the target.
        path: stages to run.
    """

    root = (0,)
    apart = False

    def __init__(self, runner: Runner, path: StagePath) -> None:
        self.lost = False
        self._runner = runner
        self._path = path
        self.most_rows = runner.model.shapes.rows[-1]

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Calls`."""
        plain = sampler.options.temperature == 0 and not sampler.reads_context
        self._count = _GREEDY_CANDIDATES if plain else _SAMPLED_CANDIDATES
        self._vocab_size = sampler.vocab_size

    def restart(self) -> None:
        """See `Calls`: nothing to do, since each draft begins with the pending token."""

    def slide(self, text: Sequence[int]) -> bool:
        """See `Calls`: never needed, since the target's context ends the text first."""
        return False

    def room(self, length: int, width: int) -> int:
        """See `Calls`: as many levels as the cache has rows for, after the pending token's.

        With more levels the cache would grow beyond what was planned.
        """
        return (self._runner.room - length) // width + 1

    def unread(self, text: Sequence[int]) -> list[int]:
        """See `Calls`: only the pending token."""
        return [1]

    def feed(self, text: Sequence[int]) -> Steps[Candidates]:
        """See `Calls`."""
        self._runner.forget_scratch()
        return self.level(Rows([text[-1]], [0], np.ones((1, 1), np.bool_), [START]))

    def level(self, rows: Rows) -> Steps[Candidates]:
        """See `Calls`."""
        yield from ()  # its calls begin with the target's first stages, each text's own
        logits = self._runner.draft(rows, self._path)["logits"][: len(rows.tokens)]
        return Candidates.from_logits(logits, self._vocab_size, self._count)

    def keep(self, text: Sequence[int], drafts: Sequence[int]) -> None:
        """See `Calls`: nothing to do, since the target's own commit keeps the accepted rows."""
