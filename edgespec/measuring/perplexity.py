"""How well a target predicts a text, and how far its predictions are from another bundle's.

The text is read teacher-forced, in windows: a window's tokens are scored from where the one before
ended, so that every token counts once, and those behind the first window's see at least
`window - stride` tokens before them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
import numpy.typing as npt

from edgespec.api.llm import LLM
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.arrays import Floats
from edgespec.runtime.deployment.deployment import Deployment
from edgespec.runtime.deployment.options import default_tree
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.shapes import ROW_BUCKETS, row_bucket

LogProbabilities = npt.NDArray[np.float64]

Report = Callable[[int], None]
"""Is told how many tokens were scored since the last time."""

# Rows of logits that a plan counts where nothing is drafted.
_PLANNED_ROWS = row_bucket(default_tree("none") + 1)


@dataclass(frozen=True)
class Mean:
    """An average over tokens, and its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Of at least one value."""
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return cls(fmean(values), error)

    @property
    def perplexity(self) -> float:
        """Where the average is of nats a token; infinite beyond what a float holds."""
        return exponential(self.value)

    @property
    def perplexity_error(self) -> float:
        """Standard error of `perplexity`, to first order."""
        return self.perplexity * self.error


@dataclass(frozen=True)
class Comparison:
    """How far predictions are from a reference's.

    Attributes:
        nats: that the reference was surprised by a token.
        kl: nats, KL(reference || bundle) of a token's distributions.
        agreement: share of the tokens before which both hold the same token likeliest.
        engine: where the reference ran.
    """

    nats: Mean
    kl: Mean
    agreement: float
    engine: str


@dataclass(frozen=True)
class Evaluation:
    """What a text showed.

    Attributes:
        tokens: of the text.
        scored: tokens that were predicted, which is all that have something before them.
        window: tokens of context and scored ones together, a beginning-of-text token included.
        stride: tokens from one window's start to the next one's.
        nats: that the target was surprised by a token.
        engine: where it ran.
        against: None: there was no reference.
    """

    tokens: int
    scored: int
    window: int
    stride: int
    nats: Mean
    engine: str
    against: Comparison | None


@dataclass(frozen=True)
class Window:
    """Part of a text: it is read from `start` to `stop`, and scored from `first` on."""

    start: int
    first: int
    stop: int


class Scores:
    """What models predicted, token by token; of two, the second is the first one's reference.

    Args:
        models: one or two.
    """

    def __init__(self, models: int) -> None:
        self._nats: list[list[float]] = [[] for _ in range(models)]
        self._divergences: list[float] = []
        self._agreed = 0

    def add(self, token: int, *logits: Floats) -> None:
        """Score a token by each model's logits before it, [V].

        Raises:
            DeviceError: if logits hold a NaN or an infinity.
        """
        found = [log_probabilities(each) for each in logits]
        for own, each in zip(self._nats, found, strict=True):
            own.append(-float(each[token]))
        if len(found) > 1:
            self._divergences.append(divergence(found[1], found[0]))
            self._agreed += int(found[0].argmax() == found[1].argmax())

    def nats(self, model: int) -> Mean:
        """That a model was surprised by a token."""
        return Mean.of(self._nats[model])

    @property
    def kl(self) -> Mean:
        """Nats, KL(reference || model) of a token's distributions."""
        return Mean.of(self._divergences)

    @property
    def agreement(self) -> float:
        """Share of the tokens before which both hold the same token likeliest."""
        return self._agreed / len(self._divergences)


class Reading:
    """A text, ready to be scored.

    Args:
        llm: whose target reads it.
        text: some hundred words or more.
        stride: tokens from one window's start to the next one's; None: half a window.
        reference: to compare with; both are in memory at the same time, and of each the logits of
            one pass.

    Attributes:
        scored: tokens that will be.

    Raises:
        InputError: if the vocabularies differ, the text is empty or the stride out of range.
    """

    def __init__(
        self, llm: LLM, text: str, stride: int | None = None, reference: LLM | None = None
    ) -> None:
        self._llms = [llm] if reference is None else [llm, reference]
        self._beginning = llm.tokenizer.encode("")
        self._tokens = llm.tokenizer.encode(text, add_special=False)
        if reference is not None:
            self._require_same_tokens(text, llm, reference)
        if not self._tokens or len(self._beginning) + len(self._tokens) < 2:
            raise InputError("the text has nothing to predict: give some hundred words")
        room = min(each.context_length for each in self._llms) - len(self._beginning)
        self._room = min(room, len(self._tokens))
        self._stride = max(self._room // 2, 1) if stride is None else stride
        if not 1 <= self._stride <= self._room:
            raise InputError(
                f"stride is {self._stride}: give 1 to {self._room}, the text's tokens in a window"
            )
        self._windows = windows(len(self._tokens), self._room, self._stride, bool(self._beginning))
        self.scored = sum(window.stop - window.first for window in self._windows)

    def evaluate(self, report: Report = lambda tokens: None) -> Evaluation:
        """Read the text, pass by pass."""
        scores = Scores(len(self._llms))
        rows = rows_of_a_pass([llm.deployment for llm in self._llms])
        for window in self._windows:
            scored = self._tokens[window.first : window.stop]
            predictions = [self._predictions(llm, window, rows) for llm in self._llms]
            for token, *logits in zip(scored, *predictions, strict=True):
                scores.add(token, *logits)
                report(1)
        against = None
        if len(self._llms) > 1:
            against = Comparison(
                scores.nats(1), scores.kl, scores.agreement, self._llms[1].target.device
            )
        return Evaluation(
            tokens=len(self._tokens),
            scored=self.scored,
            window=len(self._beginning) + self._room,
            stride=self._stride,
            nats=scores.nats(0),
            engine=self._llms[0].target.device,
            against=against,
        )

    def _predictions(self, llm: LLM, window: Window, rows: int) -> Iterator[Floats]:
        """Logits before each scored token of a window, [V], valid until the next pass."""
        tokens = [*self._beginning, *self._tokens[window.start : window.stop]]
        shift = len(self._beginning) - window.start
        runner = Runner(llm.target)
        # The row before the first scored token is the first whose logits are wanted.
        read = window.first + shift - 1
        if read:
            runner.prefill(tokens[:read])
        for results in runner.score(tokens[read:-1], rows):
            yield from results["logits"][:, : llm.tokenizer.vocab_size]

    def _require_same_tokens(self, text: str, llm: LLM, reference: LLM) -> None:
        ours, theirs = llm.tokenizer, reference.tokenizer
        if ours.vocab_size != theirs.vocab_size:
            raise InputError(
                f"{reference.bundle.path} has a vocabulary of {theirs.vocab_size} and "
                f"{llm.bundle.path} one of {ours.vocab_size}: compare bundles of one model"
            )
        same = self._beginning == theirs.encode("")
        if not same or self._tokens != theirs.encode(text, add_special=False):
            raise InputError(
                f"{reference.bundle.path} reads the text as other tokens than {llm.bundle.path}: "
                "compare bundles of one model"
            )


def windows(tokens: int, room: int, stride: int, begins: bool) -> list[Window]:
    """The windows of a text, in order.

    Args:
        tokens: of the text.
        room: of them in a window.
        stride: from one window's start to the next one's, `room` at most.
        begins: whether each window begins with a token that is not of the text; if not, its own
            first token has nothing before it to be predicted from.
    """
    found, done = list[Window](), 0
    for start in range(0, tokens, stride):
        stop = min(start + room, tokens)
        first = max(done, start + (0 if begins else 1))
        if first < stop:
            found.append(Window(start, first, stop))
        done = stop
        if stop == tokens:
            break
    return found


def exponential(value: float) -> float:
    """Of e, this power; infinite beyond what a float holds."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def log_probabilities(logits: Floats) -> LogProbabilities:
    """[V] float64 of one row of logits.

    Raises:
        DeviceError: if the logits hold a NaN or an infinity.
    """
    wide = logits.astype(np.float64)
    faulty = wide[~np.isfinite(wide)]
    if faulty.size:
        raise DeviceError(
            f"the model's logits hold {faulty[0]}: run it on another device or at a higher "
            "precision"
        )
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return wide


def divergence(reference: LogProbabilities, other: LogProbabilities) -> float:
    """KL(reference || other) in nats."""
    return float(np.exp(reference) @ (reference - other))


def rows_of_a_pass(plans: Sequence[Deployment]) -> int:
    """A prefill chunk, or as many rows as memory has room for the logits of.

    Args:
        plans: of models whose logits are held at once, each within what those before it left.
    """
    logits: Counter[str] = Counter()
    left: dict[str, int] = {}
    for demand in (demand for plan in plans for demand in plan.devices):
        logits[demand.device] += demand.logits
        left[demand.device] = max(demand.limit - demand.total, 0)
    rooms = [1 + left[device] / size for device, size in logits.items() if size]
    most = min(*(plan.prefill_chunk for plan in plans), _PLANNED_ROWS * min(rooms))
    return max(rows for rows in ROW_BUCKETS if rows <= most)
