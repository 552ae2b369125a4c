"""Perplexity of a target on a text, and the distance of its predictions from another bundle's.

The text is read teacher-forced, in windows. Each window scores the tokens after the end of the
window before, so that no token counts twice; all but those of the first window see at least
`window - stride` tokens before them. Or each window scores its last tokens only, all of which see
nearly a whole window: what long contexts do to predictions.
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
from edgespec.api.loading import default_tree
from edgespec.errors import DeviceError, InputError
from edgespec.measuring.windows import Window, endings, require_stride, windows
from edgespec.runtime.arrays import Floats
from edgespec.runtime.deployment.deployment import Deployment
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.shapes import ROW_BUCKETS, row_bucket

LogProbabilities = npt.NDArray[np.float64]

Report = Callable[[int], None]
"""Called with the number of tokens scored since the last call."""

# Rows of logits that a memory plan includes if nothing is drafted.
_PLANNED_ROWS = row_bucket(default_tree("none") + 1)


@dataclass(frozen=True)
class Mean:
    """A mean over tokens and its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Computes the mean of at least one value."""
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return cls(fmean(values), error)

    @property
    def perplexity(self) -> float:
        """The perplexity, if the mean is of nats per token; infinite if a float overflows."""
        return exponential(self.value)

    @property
    def perplexity_error(self) -> float:
        """Standard error of `perplexity`, to first order."""
        return self.perplexity * self.error


@dataclass(frozen=True)
class Comparison:
    """Distance of a bundle's predictions from a reference's.

    Attributes:
        nats: negative log-likelihood per token of the reference, in nats.
        kl: KL(reference || bundle) per token, in nats.
        agreement: share of tokens for which both have the same likeliest token.
        engine: engine that ran the reference.
    """

    nats: Mean
    kl: Mean
    agreement: float
    engine: str


@dataclass(frozen=True)
class Evaluation:
    """Result of evaluating a text.

    Attributes:
        tokens: number of tokens in the text.
        scored: number of scored tokens. A token without any context in its window is not scored.
        window: number of tokens in a window, a beginning-of-text token included.
        stride: number of tokens from one window's start to the next one's.
        last: number of tokens at each window's end that were scored; None: all new ones.
        nats: negative log-likelihood per token of the target, in nats.
        engine: engine that ran the target.
        against: comparison with the reference; None if there is none.
    """

    tokens: int
    scored: int
    window: int
    stride: int
    last: int | None
    nats: Mean
    engine: str
    against: Comparison | None


class Scores:
    """Collects the predictions of one or two models, token by token.

    Args:
        models: number of models; the second one is the reference.
    """

    def __init__(self, models: int) -> None:
        self._nats: list[list[float]] = [[] for _ in range(models)]
        self._divergences: list[float] = []
        self._agreed = 0

    def add(self, token: int, *logits: Floats) -> None:
        """Scores a token.

        Args:
            token: id of the token.
            logits: each model's logits for it, [V].

        Raises:
            DeviceError: if logits are NaN or infinite.
        """
        found = [log_probabilities(each) for each in logits]
        for own, each in zip(self._nats, found, strict=True):
            own.append(-float(each[token]))
        if len(found) > 1:
            self._divergences.append(divergence(found[1], found[0]))
            self._agreed += int(found[0].argmax() == found[1].argmax())

    def nats(self, model: int) -> Mean:
        """Returns the negative log-likelihood per token of a model, in nats."""
        return Mean.of(self._nats[model])

    @property
    def kl(self) -> Mean:
        """KL(reference || model) per token, in nats."""
        return Mean.of(self._divergences)

    @property
    def agreement(self) -> float:
        """Share of tokens for which both models have the same likeliest token."""
        return self._agreed / len(self._divergences)


class Reading:
    """A text that is ready to be evaluated.

    Args:
        llm: model whose target is evaluated.
        text: text of a few hundred words or more.
        stride: number of tokens from one window's start to the next one's; None for half a window,
            or a whole one with `last`.
        reference: model to compare with. Both are in memory at once, each with the logits of one
            pass.
        last: score so many tokens at each window's end and no others; None: each token once.

    Attributes:
        scored: number of tokens that will be scored.

    Raises:
        InputError: if the vocabularies differ, the text is empty, or `stride` or `last` is out of
            range.
    """

    def __init__(
        self,
        llm: LLM,
        text: str,
        stride: int | None = None,
        reference: LLM | None = None,
        last: int | None = None,
    ) -> None:
        self._llms = [llm] if reference is None else [llm, reference]
        self._beginning = llm.tokenizer.encode("")
        self._tokens = llm.tokenizer.encode(text, add_special=False)
        if reference is not None:
            self._require_same_tokens(text, llm, reference)
        if not self._tokens or len(self._beginning) + len(self._tokens) < 2:
            raise InputError("the text is too short to predict: give a few hundred words")
        room = min(each.context_length for each in self._llms) - len(self._beginning)
        self._room = min(room, len(self._tokens))
        self._last = last
        usual = self._room // 2 if last is None else self._room
        self._stride = max(usual, 1) if stride is None else stride
        require_stride(self._stride, self._room, last)
        size, begins = (len(self._tokens), self._room, self._stride), bool(self._beginning)
        self._windows = windows(*size, begins) if last is None else endings(*size, last, begins)
        self.scored = sum(window.stop - window.first for window in self._windows)

    def evaluate(self, report: Report = lambda tokens: None) -> Evaluation:
        """Evaluates the text, pass by pass.

        Raises:
            InputError: if a model makes embeddings.
        """
        for llm in self._llms:
            llm.require_texts()
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
            last=self._last,
            nats=scores.nats(0),
            engine=self._llms[0].target.device,
            against=against,
        )

    def _predictions(self, llm: LLM, window: Window, rows: int) -> Iterator[Floats]:
        """Yields the logits for each scored token of a window, [V], valid until the next pass."""
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
                f"{llm.bundle.path} one of {ours.vocab_size}: compare bundles of the same model"
            )
        same = self._beginning == theirs.encode("")
        if not same or self._tokens != theirs.encode(text, add_special=False):
            raise InputError(
                f"{reference.bundle.path} splits the text into other tokens than "
                f"{llm.bundle.path}: compare bundles of the same model"
            )


def exponential(value: float) -> float:
    """Returns e to the power of a value; infinite if a float overflows."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def log_probabilities(logits: Floats) -> LogProbabilities:
    """Computes log-probabilities, [V] float64, from one row of logits.

    Raises:
        DeviceError: if logits are NaN or infinite.
    """
    wide = logits.astype(np.float64)
    faulty = wide[~np.isfinite(wide)]
    if faulty.size:
        raise DeviceError(
            f"the model's logits contain {faulty[0]}: use another device or a higher precision"
        )
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return wide


def divergence(reference: LogProbabilities, other: LogProbabilities) -> float:
    """Computes KL(reference || other) in nats."""
    return float(np.exp(reference) @ (reference - other))


def rows_of_a_pass(plans: Sequence[Deployment]) -> int:
    """Returns the number of rows per pass: a prefill chunk, or fewer if memory limits the logits.

    Args:
        plans: deployments of models whose logits are in memory at once; each plan allows for the
            memory of those before it.
    """
    logits: Counter[str] = Counter()
    left: dict[str, int] = {}
    for demand in (demand for plan in plans for demand in plan.devices):
        logits[demand.device] += demand.logits
        left[demand.device] = max(demand.limit - demand.total, 0)
    rooms = [1 + left[device] / size for device, size in logits.items() if size]
    most = min(*(plan.prefill_chunk for plan in plans), _PLANNED_ROWS * min(rooms))
    return max(rows for rows in ROW_BUCKETS if rows <= most)
