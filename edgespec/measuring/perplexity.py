"""Perplexity of a target on a text, and the distance of its predictions from another bundle's.

The text is read teacher-forced, in windows. Each window scores the tokens after the end of the
window before, so that no token counts twice; all but those of the first window see at least
`window - stride` tokens before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from edgespec.errors import DeviceError, InputError
from edgespec.llm.llm import LLM, inside
from edgespec.runtime.arrays import Doubles, Floats
from edgespec.runtime.sequences.model import AFTER, Model, Rows

Report = Callable[[int], None]
"""Called with the number of tokens scored since the last call."""

PASS_ROWS = 64
"""Rows of a pass, as many as a memory plan has logits for."""


@dataclass(frozen=True)
class ScoredSpan:
    """A part of a text: tokens `start` to `stop` are read, those from `first` on are scored."""

    start: int
    first: int
    stop: int


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
        nats: negative log-likelihood per token of the target, in nats.
        engine: engine that ran the target.
        against: comparison with the reference; None if there is none.
    """

    tokens: int
    scored: int
    window: int
    stride: int
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
        """Scores a token by each model's logits for it, [V].

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


class TokenizedText:
    """A text that is ready to be evaluated.

    Args:
        llm: model whose target is evaluated.
        text: text of a few hundred words or more.
        stride: number of tokens from one window's start to the next one's; None for half a window.
        reference: model to compare with. Both are in memory at once, each with the logits of one
            pass.

    Attributes:
        scored: number of tokens that will be scored.

    Raises:
        InputError: if a model makes embeddings, the vocabularies differ, the text is empty, or
            `stride` is out of range.
    """

    def __init__(
        self, llm: LLM, text: str, stride: int | None = None, reference: LLM | None = None
    ) -> None:
        self._llms = [llm] if reference is None else [llm, reference]
        for each in self._llms:
            inside(each).require_texts()
        self._beginning = llm.tokenizer.encode("")
        self._tokens = llm.tokenizer.encode(text, add_special=False)
        if reference is not None:
            self._require_same_tokens(text, llm, reference)
        if not self._tokens or len(self._beginning) + len(self._tokens) < 2:
            raise InputError("the text is too short to predict: give a few hundred words")
        room = min(each.context_length for each in self._llms) - len(self._beginning)
        self._room = min(room, len(self._tokens))
        self._stride = max(self._room // 2, 1) if stride is None else stride
        if not 1 <= self._stride <= self._room:
            raise InputError(f"stride is {stride}: give 1 to {self._room}, the tokens in a window")
        self._windows = windows(len(self._tokens), self._room, self._stride, bool(self._beginning))
        self.scored = sum(window.stop - window.first for window in self._windows)

    def evaluate(self, report: Report = lambda tokens: None) -> Evaluation:
        """Evaluates the text, pass by pass."""
        scores = Scores(len(self._llms))
        targets = [inside(llm).engine.target for llm in self._llms]
        vocab_size = self._llms[0].tokenizer.vocab_size
        for window in self._windows:
            read = [*self._beginning, *self._tokens[window.start : window.stop]]
            first = window.first + len(self._beginning) - window.start
            found = [predictions(target, read[:-1], first - 1) for target in targets]
            for token, *logits in zip(read[first:], *found, strict=True):
                scores.add(token, *[each[:vocab_size] for each in logits])
                report(1)
        against = None
        if len(targets) > 1:
            engine = targets[1].device
            against = Comparison(scores.nats(1), scores.kl, scores.agreement, engine)
        return Evaluation(
            tokens=len(self._tokens),
            scored=self.scored,
            window=len(self._beginning) + self._room,
            stride=self._stride,
            nats=scores.nats(0),
            engine=targets[0].device,
            against=against,
        )

    def _require_same_tokens(self, text: str, llm: LLM, reference: LLM) -> None:
        ours = llm.tokenizer
        theirs = reference.tokenizer
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


def predictions(
    model: Model, tokens: Sequence[int], first: int, rows: int = PASS_ROWS
) -> Iterator[Floats]:
    """Reads tokens, and yields the logits behind each from number `first` on, [V] float32 each.

    They are valid until the next pass. Passes have `rows` rows, and the last one perhaps fewer.
    """
    sequence = model.sequence(list(tokens))
    try:
        while part := sequence.unread[:rows]:
            count = len(part)
            wanted = list(range(min(max(first - sequence.length, 0), count), count))
            each = Rows(sequence, part, [AFTER, *range(count - 1)], wanted, certain=count)
            logits = model.forward([each])[0]
            each.accept(range(count))
            yield from logits
    finally:
        sequence.free()


def windows(tokens: int, room: int, stride: int, begins: bool) -> list[ScoredSpan]:
    """Returns windows that score each token of a text once, in order.

    Args:
        tokens: number of tokens in the text.
        room: number of the text's tokens in a window.
        stride: number of tokens from one window's start to the next one's, at most `room`.
        begins: whether each window starts with an extra beginning-of-text token. If not, a
            window's first token has no context, and is not scored unless the window before did.
    """
    found = list[ScoredSpan]()
    done = 0
    for start in range(0, tokens, stride):
        stop = min(start + room, tokens)
        first = max(done, start + (0 if begins else 1))
        if first < stop:
            found.append(ScoredSpan(start, first, stop))
        done = stop
        if stop == tokens:
            break
    return found


def exponential(value: float) -> float:
    """Returns e to the power of a value; infinite if a float overflows."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def log_probabilities(logits: Floats) -> Doubles:
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


def divergence(reference: Doubles, other: Doubles) -> float:
    """Computes KL(reference || other) in nats."""
    return float(np.exp(reference) @ (reference - other))
