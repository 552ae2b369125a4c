"""Records of layer-skip drafts: what is left out of a target, and what that promises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Promise:
    """Estimated speed of a skip set on one kind of text.

    Attributes:
        agreement: share of positions at which draft and target choose the same token.
        chain: number of drafted tokens per round with the highest estimate.
        tokens_per_second: estimated speed.
    """

    agreement: float
    chain: int
    tokens_per_second: float


@dataclass(frozen=True)
class SkipScore:
    """Estimated speed of a skip set on the machine that made the bundle.

    Attributes:
        draft_cost: time of a draft call divided by that of a call of the whole model, for one row.
        plain_tokens_per_second: speed of the same model without drafts, from the same measurement.
        engine: engine that was measured.
        greedy: estimate for greedy text.
        sampled: estimate for text sampled at temperature 0.8.
    """

    draft_cost: float
    plain_tokens_per_second: float
    engine: str
    greedy: Promise
    sampled: Promise

    def speedup(self, sampled: bool) -> float:
        """Returns the estimated speed relative to plain decoding; below 1 means slower."""
        promise = self.sampled if sampled else self.greedy
        return promise.tokens_per_second / self.plain_tokens_per_second

    @property
    def pays(self) -> bool:
        """Whether the estimate beats plain decoding on at least one kind of text."""
        return max(self.speedup(False), self.speedup(True)) > 1

    @property
    def tokens_per_second(self) -> float:
        """Estimated speed if half of the tokens are greedy and half sampled; ranks skip sets."""
        seconds = 1 / self.greedy.tokens_per_second + 1 / self.sampled.tokens_per_second
        return 2 / seconds


@dataclass(frozen=True)
class SkipSet:
    """Sublayers that a layer-skip draft leaves out of the target.

    Attributes:
        skipped: numbers of the skipped sublayers, ascending.
        score: estimated speed; None if it was never measured.
    """

    skipped: tuple[int, ...]
    score: SkipScore | None = None
