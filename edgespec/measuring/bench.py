"""Benchmark of draft sources against plain decoding, on the same texts of one loaded bundle.

The settings take turns text by text, so that other load on the machine affects all of them. Each
text begins with nothing that earlier ones taught or computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from edgespec.bundle import TARGET
from edgespec.errors import ContextLengthError, InputError
from edgespec.llm.llm import LLM, inside
from edgespec.llm.prompts import or_more_context
from edgespec.llm.stream import Stream
from edgespec.measuring.bits import Bits, compare_bits
from edgespec.measuring.perplexity import predictions
from edgespec.runtime.sampling.noise import gumbel
from edgespec.runtime.sequences.model import NATIVE

PLAIN = "plain"
"""Name of the setting that the others are compared with."""

VERDICTS = ("no", "near-tie", "yes")
"""Verdicts on a text beside plain decoding's, the worst first.

`yes`: the texts are the same. `near-tie`: they are the same up to a place where the target's scores
of the two tokens are closer than its rounding error, on a device where rows depend a little on the
other rows of their pass. `no`: they differ, which is a bug.
"""

Report = Callable[[str], None]
"""Called before each text with a description of it."""

Span = tuple[float, float]
"""The smallest and the largest value."""

_NEAR_TIE = 0.05  # standard deviations of the logits
_PASS_ROWS = (1, 8)  # rows per pass with which scores are computed again


@dataclass(frozen=True)
class BenchRequest:
    """One text to make: the prompt's token ids and the options, the same in every setting."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class BenchLine:
    """The result of one setting.

    Times and speeds are the median of the repeats; their `range` is the smallest and the largest
    of them.

    Attributes:
        name: plain, or the draft source.
        tokens_per_second: speed over all texts of a repeat, without each text's first token.
        tokens_per_second_range: range of the repeats.
        speedup_vs_plain: `tokens_per_second` relative to plain decoding.
        ttft_ms: time to the first token, median over the repeat's texts.
        ttft_ms_range: range of the repeats.
        tpot_ms: time per further token, median over the repeat's texts.
        tpot_ms_range: range of the repeats.
        mean_accepted_length: mean number of tokens per round.
        acceptance_by_depth: share of rounds that accepted one draft token or more, two or more, and
            so on; their sum is the mean number of accepted draft tokens per round.
        draft_ms: mean time of drafting per round.
        verify_ms: mean time of verification per round; with overlap it includes what is drafted
            meanwhile.
        other_ms: mean time per round of everything else: sampling, committing, learning and
            decoding the text.
        equal_to_plain: the worst of `VERDICTS` over the texts.
        verdicts: number of texts by verdict.
        texts: number of texts that were made.
        new_tokens: number of new tokens in all texts.
        rounds: number of rounds in all texts, without the prompts' passes.
        sources: number of rounds by draft source.
    """

    name: str
    tokens_per_second: float
    tokens_per_second_range: Span
    speedup_vs_plain: float
    ttft_ms: float
    ttft_ms_range: Span
    tpot_ms: float
    tpot_ms_range: Span
    mean_accepted_length: float
    acceptance_by_depth: tuple[float, ...]
    draft_ms: float
    verify_ms: float
    other_ms: float
    equal_to_plain: str
    verdicts: dict[str, int]
    texts: int
    new_tokens: int
    rounds: int
    sources: dict[str, int]


class Bench:
    """Plain decoding and draft sources, and the texts that each of them makes.

    Args:
        llm: a bundle that is loaded with these sources.
        drafts: draft sources to compare with plain decoding.
        requests: at least one text; the first one is also the warm-up.

    Attributes:
        settings: draft sources by name of the setting; `PLAIN` comes first.

    Raises:
        ContextLengthError: if a prompt does not fit the context.
        InputError: if the bundle is loaded without one of the sources.
    """

    def __init__(self, llm: LLM, drafts: Iterable[str], requests: Sequence[BenchRequest]) -> None:
        self._llm = llm
        self._requests = requests
        self.settings = {PLAIN: "none"} | {draft: draft for draft in drafts}
        for draft in self.settings.values():
            if draft not in llm.draft_sources:
                raise InputError(
                    f"{llm.bundle.path} is loaded without {draft}: compare it alone, or use "
                    f"--draft {','.join(llm.draft_sources)}"
                )
        for number, request in enumerate(requests, 1):
            if len(request.prompt) >= llm.context_length:
                raise ContextLengthError(
                    f"prompt {number} has {len(request.prompt)} tokens, and the context has room "
                    f"for {llm.context_length} including a new one: leave it out"
                    f"{or_more_context(llm.bundle, llm.context_length)}"
                )

    def steps(self, repeats: int) -> int:
        """Returns how often `measure` reports."""
        return len(self.settings) * (1 + repeats * len(self._requests))

    def measure(
        self,
        repeats: int,
        report: Report = lambda what: None,
        others: Sequence[Callable[[BenchRequest], None]] = (),
    ) -> list[BenchLine]:
        """Makes all texts in all settings, `repeats` times.

        Args:
            repeats: number of repeats.
            report: called before each text.
            others: other programs that make each text, too, in turns with the settings.

        Raises:
            EdgespecError: if a text fails.
            InputError: if no text has more than one token.
        """
        made: dict[str, list[list[Stream]]] = {name: [] for name in self.settings}
        for name, draft in self.settings.items():
            report(f"{name}: warm-up")
            self._made(self._requests[0], draft)
        for _ in range(repeats):
            for texts in made.values():
                texts.append([])
            for number, request in enumerate(self._requests, 1):
                for name, draft in self.settings.items():
                    report(f"{name}: text {number} of {len(self._requests)}")
                    made[name][-1].append(self._made(request, draft))
                for other in others:
                    other(request)
        plain = median(map(_speed, made[PLAIN]))
        reference = [text.result.tokens for text in made[PLAIN][0]]
        return [
            _line(
                name,
                repeated,
                plain,
                [
                    verdict(self._llm, request, expected, text.result.tokens)
                    for texts in repeated
                    for request, expected, text in zip(
                        self._requests, reference, texts, strict=True
                    )
                ],
            )
            for name, repeated in made.items()
        ]

    def bits(self, positions: int) -> Bits:
        """Compares the bits of the target's logits at the last positions of the first text."""
        request = self._requests[0]
        tokens = [*request.prompt, *self._made(request, "none").result.tokens]
        start = max(len(tokens) - positions, 1)
        return compare_bits(inside(self._llm).engine.target, tokens, start)

    def _made(self, request: BenchRequest, draft: str) -> Stream:
        self._llm.forget()
        stream = self._llm.stream(
            request.prompt,
            draft_source=draft,
            max_new_tokens=request.max_new_tokens,
            temperature=request.temperature,
            seed=request.seed,
        )
        stream.finish()
        return stream


def verdict(llm: LLM, request: BenchRequest, expected: Sequence[int], found: Sequence[int]) -> str:
    """Returns one of `VERDICTS` on two texts of a model.

    Where rows are not exact, activations that are rounded to 8 bits let another order of sums move
    logits by 2 % of their spread. So two tokens are a near-tie if the target scores them alike in a
    pass of some number of rows.

    Args:
        llm: the model.
        request: what both texts were made for.
        expected: tokens of plain decoding.
        found: tokens of the other text.
    """
    if list(expected) == list(found):
        return "yes"
    pairs = list(zip(expected, found, strict=False))
    same = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    # If rows are exact, or one text merely ends earlier, rounding does not explain it.
    if same is None or llm.engines[TARGET] == NATIVE:
        return "no"
    tokens = [*request.prompt, *expected[:same]]
    for rows in _PASS_ROWS:
        (last,) = predictions(inside(llm).engine.target, tokens, len(tokens) - 1, rows)
        scores = last[: llm.tokenizer.vocab_size].astype(np.float64)
        spread = scores.std()
        if request.temperature:
            noise = gumbel(request.seed, len(tokens), np.arange(scores.size))
            scores += request.temperature * noise
        if scores.max() - scores[list(pairs[same])].min() <= _NEAR_TIE * spread:
            return "near-tie"
    return "no"


def _line(
    name: str, repeats: Sequence[Sequence[Stream]], plain: float, verdicts: list[str]
) -> BenchLine:
    """Summarizes all texts of a setting; `plain` is the speed of plain decoding in tokens/s."""
    made = [text for texts in repeats for text in texts]
    results = [text.result for text in made]
    steps = [step for text in made for step in text.rounds]
    speed, speeds = _middle([_speed(texts) for texts in repeats], 1)
    ttft, ttfts = _middle([median(t.result.ttft_ms for t in texts) for texts in repeats], 2)
    further = [[t.result.tpot_ms for t in texts if t.result.new_tokens > 1] for texts in repeats]
    tpot, tpots = _middle(list(map(median, further)), 3)
    whole = sum(map(_seconds, made))
    draft = sum(step.draft_seconds for step in steps)
    verify = sum(step.verify_seconds for step in steps)

    def of_a_round(seconds: float) -> float:
        return round(max(seconds, 0.0) * 1e3 / len(steps), 3)

    return BenchLine(
        name=name,
        tokens_per_second=speed,
        tokens_per_second_range=speeds,
        speedup_vs_plain=round(median(map(_speed, repeats)) / plain, 3),
        ttft_ms=ttft,
        ttft_ms_range=ttfts,
        tpot_ms=tpot,
        tpot_ms_range=tpots,
        mean_accepted_length=round(
            sum(result.new_tokens - 1 for result in results) / len(steps), 3
        ),
        acceptance_by_depth=acceptance_by_depth([step.accepted for step in steps]),
        draft_ms=of_a_round(draft),
        verify_ms=of_a_round(verify),
        other_ms=of_a_round(whole - draft - verify),
        equal_to_plain=min(verdicts, key=VERDICTS.index),
        verdicts=dict(Counter(verdicts)),
        texts=len(made),
        new_tokens=sum(result.new_tokens for result in results),
        rounds=len(steps),
        sources=dict(sum((Counter(result.sources) for result in results), Counter())),
    )


def acceptance_by_depth(accepted: Sequence[int]) -> tuple[float, ...]:
    """Returns the share of rounds that accepted one draft token or more, two or more, and so on.

    Args:
        accepted: number of accepted draft tokens in each round, for at least one round.
    """
    rounds = len(accepted)
    return tuple(
        round(sum(count >= depth for count in accepted) / rounds, 4)
        for depth in range(1, max(accepted) + 1)
    )


def _middle(values: Sequence[float], digits: int) -> tuple[float, Span]:
    """Returns the median, and the smallest and largest value."""
    least, most = (round(end(values), digits) for end in (min, max))
    return round(median(values), digits), (least, most)


def _speed(texts: Sequence[Stream]) -> float:
    """Returns the tokens per second of a repeat, without the first token of each text."""
    tokens = sum(text.result.new_tokens - 1 for text in texts)
    seconds = sum(map(_seconds, texts))
    if not tokens:
        raise InputError(
            "every text ends after its first token, so speed cannot be measured: give other prompts"
        )
    return tokens / seconds


def _seconds(text: Stream) -> float:
    """Returns the time of all tokens after the first."""
    return text.result.tpot_ms * (text.result.new_tokens - 1) / 1e3
