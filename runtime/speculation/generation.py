"""A text in the making: what was asked for, its sequence, and the target's choices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from edgespec.runtime.arrays import Floats
from edgespec.runtime.sampling.logprobs import TokenLogprobs, token_logprobs
from edgespec.runtime.sampling.mirostat import Mirostat
from edgespec.runtime.sampling.penalties import Penalties
from edgespec.runtime.sampling.repetitions import Breakers
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.runtime.speculation.tree import Proposal, Verdict, walk

if TYPE_CHECKING:
    from edgespec.runtime.drafters.base import Drafter
    from edgespec.runtime.sampling.constraint import Constraint
    from edgespec.runtime.sequences.adapters import Adapters
    from edgespec.runtime.sequences.model import Rows
    from edgespec.runtime.sequences.pictures import Pictures

PROMPT = "prompt"
"""Value of `Round.source` for rounds that read the prompt."""

AUTO = "auto"
"""The draft source that stands for all."""

NO_DRAFT = "none"
"""The draft source of plain decoding."""

Kept = Callable[[], TokenSequence | None]
"""Returns a sequence that is to share all slots, such as a session's; None: none is by now."""

_MOST_FEATURES = 512  # tokens whose features are kept; a head that is further behind begins anew


@dataclass(frozen=True)
class Limits:
    """Limits of a generation.

    Attributes:
        max_new_tokens: largest number of tokens to generate.
        context_length: largest number of tokens of prompt and output together.
        stop_ids: tokens that end it; the one that does is its last token.
        max_nodes: largest number of nodes of a draft tree; 0 for plain decoding.
        width: largest number of children of a node; 1 drafts chains.
    """

    max_new_tokens: int
    context_length: int
    stop_ids: frozenset[int] = frozenset()
    max_nodes: int = 31
    width: int = 4


@dataclass(frozen=True)
class Request:
    """What a generation is to be.

    Attributes:
        prompt: at least one token, and fewer than the context holds.
        sampler: chooses the tokens.
        limits: when to stop, and how large trees may be.
        draft: the draft source; `AUTO` for all.
        grammar: matcher at the beginning of its grammar, if the tokens must follow one.
        logprobs: number of log-probabilities to give with each token besides its own; None: none.
        prediction: tokens that are expected, from which all draft sources but none begin.
        kept: called when the generation has ended; see `Kept`.
        salt: it shares slots with generations of the same salt alone.
        adapters: see `TokenSequence`.
        turns: numbers of the prompt's first tokens, in order, behind which others may go on: what
            recurrent layers hold of them is kept.
        look: makes what is read of pictures in place of some tokens of the prompt, which may take
            seconds; None: all are read.
        breakers: what ends repetitions that are penalized.
    """

    prompt: Sequence[int]
    sampler: Sampler
    limits: Limits
    draft: str = AUTO
    grammar: Constraint | None = None
    logprobs: int | None = None
    prediction: Sequence[int] = ()
    kept: Kept = lambda: None
    salt: str = ""
    adapters: Adapters = ()
    turns: Sequence[int] = ()
    look: Callable[[], Pictures] | None = None
    breakers: Breakers = field(default_factory=dict)


@dataclass(frozen=True)
class Forecast:
    """The expected result of a round.

    Attributes:
        tokens: expected number of new tokens, the target's own one included.
        seconds: expected duration, from the beginning of the draft to the end of the round.
    """

    tokens: float
    seconds: float


@dataclass(frozen=True)
class Round:
    """What a pass of the target brought a generation.

    Attributes:
        tokens: new tokens; empty where a chunk of the prompt was read.
        drafted: number of nodes in the verified tree.
        accepted: number of these nodes that were accepted.
        source: names of the draft sources of the tree; `PROMPT` for passes that read the prompt.
        seconds: duration of the round, for all sequences that shared it.
        draft_seconds: duration of the drafts, part of `seconds`.
        verify_seconds: duration of the pass, part of `seconds`.
        forecast: expected result of the round for all sequences; None where nothing drafts.
        logprobs: log-probabilities of each token, where they were asked for.
        begun: whether its draft was begun during the pass before.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    source: str
    seconds: float
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    forecast: Forecast | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    begun: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """What a pass read of a sequence, and what came of it.

    Attributes:
        rows: tokens that were read, then the nodes of the verified tree.
        logits: [nodes + 1, V] float32 of the last token read and of the nodes.
        tokens: the new tokens, which are part of the sequence already.
    """

    rows: Rows
    logits: Floats
    tokens: Sequence[int]


class Features:
    """Features of consecutive tokens, up to the last one that the target has read.

    Attributes:
        stop: position behind the last token.
    """

    def __init__(self) -> None:
        self.stop = 0
        self._rows = deque[Floats](maxlen=_MOST_FEATURES)

    @property
    def start(self) -> int:
        """Position of the first token."""
        return self.stop - len(self._rows)

    def append(self, rows: Floats, stop: int) -> None:
        """Adds the features of tokens, [n, F], of which the last is before position `stop`.

        Where a sequence shares slots that an earlier one has read, there is a gap before them; what
        was kept before the gap is forgotten.
        """
        if stop - len(rows) != self.stop:
            self._rows.clear()
        self._rows.extend(rows)
        self.stop = stop

    def read(self, start: int, count: int) -> Floats:
        """Returns the features of tokens from a position on, [count, F]."""
        first = start - self.start
        return np.stack(list(islice(self._rows, first, first + count)))


class Generation:
    """A sequence that the target continues.

    Attributes:
        request: what was asked for.
        sequence: prompt and new tokens, with the target's slots.
        features: what draft heads read of the last tokens that the target has read.
        penalties: what changes logits before tokens are chosen; None if nothing does.
        drafters: what drafts for it, once it runs.
        rounds: those that nobody has read yet.
        reused: number of tokens of the prompt that were read before it.
        finish: why it ended: stop, length, context, cancelled or error; None while it goes on.
        error: what went wrong, if something did.
        cancelled: whether it is to end before the next pass; any thread or signal handler may set
            it.
    """

    def __init__(self, request: Request, sequence: TokenSequence) -> None:
        self.request = request
        self.sequence = sequence
        self.features = Features()
        self.penalties: Penalties | None = None
        sampler = request.sampler
        vocab_size = sampler.vocab_size
        self._mirostat = Mirostat(sampler.options, vocab_size) if sampler.options.mirostat else None
        if sampler.options.penalizes:
            self.penalties = Penalties(
                sampler.options, vocab_size, request.prompt, request.breakers
            )
        self.drafters: list[Drafter] = []
        self.rounds = deque[Round]()
        self.reused = 0
        self.finish: str | None = None
        self.error: Exception | None = None
        self.cancelled = False
        self._logprobs: list[TokenLogprobs] = []

    @property
    def tokens(self) -> list[int]:
        """Prompt and new tokens."""
        return self.sequence.tokens

    @property
    def is_new(self) -> bool:
        """Whether the target has not read the whole prompt yet."""
        return self.sequence.length < len(self.request.prompt)

    @property
    def has_ended(self) -> bool:
        """Whether it is in no further pass."""
        return self.cancelled or self.finish is not None

    @property
    def is_answered(self) -> bool:
        """Whether its reader need not wait."""
        return bool(self.rounds) or self.has_ended

    @property
    def new_tokens(self) -> int:
        """The number of tokens behind the prompt."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """The largest number of tokens that may follow."""
        limits = self.request.limits
        prompt = len(self.request.prompt)
        end = min(prompt + limits.max_new_tokens, limits.context_length)
        return end - len(self.tokens)

    @property
    def further_slots(self) -> int:
        """The largest number of slots that it may need besides those that its sequence has."""
        read = len(self.tokens) + self.remaining - 1  # the last token is never read
        # A tree is drafted, by the target's own layers perhaps, and then verified.
        return read + 2 * self.request.limits.max_nodes - self.sequence.length

    @property
    def is_sampled(self) -> bool:
        """Whether its tokens are sampled; if not, it is greedy."""
        return self.request.sampler.options.temperature > 0

    @property
    def drafts(self) -> bool:
        """Whether there are drafts at all."""
        return self.request.limits.max_nodes > 0 and self.request.draft != NO_DRAFT

    def drafts_by(self, source: str, in_auto: bool = True) -> bool:
        """Whether a draft source is to be used, which may be one of those of `AUTO`."""
        asked = self.request.draft
        return self.drafts and (asked == source or (in_auto and asked == AUTO))

    def verify(self, tree: Proposal, logits: Floats) -> Verdict:
        """Follows the target's own choices down a tree.

        Args:
            tree: the tree below the last token.
            logits: [n + 1, V] float32 of the last token's row and the nodes'.

        Raises:
            DeviceError: if logits are not finite.
            InputError: if the grammar allows no further token.
        """
        position = len(self.tokens)

        def choose(row: int, branch: list[int]) -> int:
            return self._choose(logits[row], position + len(branch))

        return walk(tree, choose, self.request.limits.stop_ids)

    def add(self, made: Round) -> None:
        """Adds a round, whose tokens are part of the sequence, and ends where they say so."""
        self.rounds.append(made)  # first, since other threads take it as the last one
        if not made.tokens:
            return
        limits = self.request.limits
        if made.tokens[-1] in limits.stop_ids:
            self.finish = "stop"
        elif self.remaining <= 0:
            self.finish = "length" if self.new_tokens >= limits.max_new_tokens else "context"

    def fail(self, error: Exception) -> None:
        """Ends it with an error."""
        self.error = error
        self.finish = "error"

    def take_round(self) -> Round | None:
        """Returns the next unread round; None at its end.

        Raises:
            Exception: `error`, behind the last round.
        """
        if self.cancelled:
            return None
        if self.rounds:
            return self.rounds.popleft()
        if self.error is not None:
            raise self.error
        return None

    def take_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Returns the log-probabilities of the choices since the last call."""
        taken = tuple(self._logprobs)
        self._logprobs = []
        return taken

    def _choose(self, logits: Floats, position: int) -> int:
        request = self.request
        penalties = self.penalties
        allowed = None if request.grammar is None else request.grammar.allowed()
        penalized = logits if penalties is None else penalties.penalized(logits)
        token = request.sampler.choose(penalized, position, allowed, self._mirostat)
        if penalties is not None:
            penalties.append(token)
        if request.grammar is not None:
            request.grammar.advance(token)
        if request.logprobs is not None:
            vocab_size = request.sampler.vocab_size
            self._logprobs.append(token_logprobs(logits, token, vocab_size, request.logprobs))
        return token
