"""What came of a text: the text itself, and how long its parts took."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgespec.runtime.decoding.generate import PROMPT, Round
from edgespec.runtime.execution.model import Model
from edgespec.runtime.sampling.logprobs import TokenLogprobs

_WARM_UP = 10  # rounds before the planner is held to its word


@dataclass(frozen=True)
class GenerationResult:
    """A finished text and how it came about.

    Attributes:
        text: the new text, without the prompt.
        tokens: the new tokens' ids, the one that ended the text included.
        prompt_tokens: tokens of the prompt.
        new_tokens: how many `tokens` there are.
        finish_reason: stop, length, context or cancelled.
        seed: the seed in use; with it the same text comes again.
        ttft_ms: time to the first token.
        tpot_ms: time per further token; 0 if there was none.
        tokens_per_second: of the further tokens; 0 if there was none.
        rounds: passes of the target after the prompt's.
        drafted: tokens that were proposed.
        accepted: proposed tokens that became text.
        mean_accepted_length: tokens per round; 0 if there was no round.
        begun: rounds whose draft had been begun in the round before.
        draft: the draft source.
        sources: rounds by who drafted their trees; where drafts are planned they differ.
        draft_memory: what recycling started from: cold (nothing) or hot (earlier texts, or a
            file); None if it takes no part.
        predicted_tokens_per_second: of the rounds after the tenth, what the planner expected;
            None if nothing was planned.
        measured_tokens_per_second: of the same rounds, what came.
        engine: where the target ran.
        exact: it computed rows alike in all company (docs/graph.md), so that the text is
            plain decoding's, token for token; else equal up to a near-tie.
        draft_engine: where the draft model was ready to; None: there was none.
        peak_rss_mb: the process's largest resident memory so far, MiB, file-backed pages included.
        engine_ms: of the time after the first token, how much passed inside the engines.
        reused: tokens of the prompt that an earlier text had left in the caches.
        logprobs: of each token, where they were asked for.
        simulated: the machine that all times are simulated for; None: they are this machine's.
    """

    text: str
    tokens: list[int]
    prompt_tokens: int
    new_tokens: int
    finish_reason: str
    seed: int
    ttft_ms: float
    tpot_ms: float
    tokens_per_second: float
    rounds: int
    drafted: int
    accepted: int
    mean_accepted_length: float
    begun: int
    draft: str
    sources: dict[str, int]
    draft_memory: str | None
    predicted_tokens_per_second: float | None
    measured_tokens_per_second: float | None
    engine: str
    exact: bool
    draft_engine: str | None
    peak_rss_mb: float
    engine_ms: float
    reused: int
    logprobs: tuple[TokenLogprobs, ...]
    simulated: str | None


class Clock:
    """When tokens came, and how much of the time the engines took.

    Attributes:
        begin: of the text, by `time.perf_counter`.
        first: when the first token came.
        end: when the last one came.
        rounds: so far, the prompt's left out.
        engine_seconds: that passed inside the engines in these rounds.
    """

    def __init__(self) -> None:
        self.begin = self.first = self.end = 0.0
        self.rounds: list[Round] = []
        self.engine_seconds = 0.0

    def start(self) -> None:
        """The text begins."""
        self.begin = self.first = self.end = time.perf_counter()

    def round(self, rounds: Iterator[Round], models: Iterable[Model]) -> Round | None:
        """The next round, by these models; None: the text is over."""
        before = sum(model.seconds for model in models)
        step = next(rounds, None)
        if step is None:
            return None
        self.end = time.perf_counter()
        if step.source == PROMPT:
            self.first = self.end
        else:
            self.rounds.append(step)
            self.engine_seconds += sum(model.seconds for model in models) - before
        return step

    def cut(self, tokens: int) -> None:
        """Only so many tokens of the last round became text."""
        if self.rounds:  # the prompt's own has one token
            last = self.rounds[-1]
            accepted = min(last.accepted, tokens)
            self.rounds[-1] = replace(last, tokens=last.tokens[:tokens], accepted=accepted)

    def facts(self, tokens: int) -> dict[str, Any]:
        """What a `GenerationResult` of so many tokens says of its times and rounds."""
        rounds, seconds, further = self.rounds, self.end - self.first, max(tokens - 1, 0)
        predicted, measured = _rates(rounds[_WARM_UP:])
        return {
            "new_tokens": tokens,
            "ttft_ms": round((self.first - self.begin) * 1e3, 2),
            "tpot_ms": round(seconds * 1e3 / further, 3) if further else 0.0,
            "tokens_per_second": round(further / seconds, 1) if further else 0.0,
            "rounds": len(rounds),
            "drafted": sum(step.drafted for step in rounds),
            "accepted": sum(step.accepted for step in rounds),
            "mean_accepted_length": _mean([len(step.tokens) for step in rounds]),
            "begun": sum(step.begun for step in rounds),
            "sources": dict(Counter(step.source for step in rounds).most_common()),
            "predicted_tokens_per_second": predicted,
            "measured_tokens_per_second": measured,
            "engine_ms": round(self.engine_seconds * 1e3, 2),
        }


def _rates(rounds: Sequence[Round]) -> tuple[float | None, float | None]:
    """Tokens per second that were forecast, and those that came in these rounds."""
    planned = [(step, step.forecast) for step in rounds if step.forecast is not None]
    if not planned:
        return None, None
    expected = sum(f.tokens for _, f in planned) / sum(f.seconds for _, f in planned)
    came = sum(len(step.tokens) for step, _ in planned) / sum(step.seconds for step, _ in planned)
    return round(expected, 1), round(came, 1)


def _mean(values: Sequence[int]) -> float:
    return round(sum(values) / len(values), 3) if values else 0.0
