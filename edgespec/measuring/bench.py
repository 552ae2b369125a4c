"""Benchmark of draft sources against plain decoding, on the same texts.

Each setting has its own process (`worker`). The settings take turns text by text, so that other
load on the machine affects all of them. If memory does not hold all of them at once, they take
turns by repeats, and are loaded again each time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from edgespec.api.loading import MODEL_DRAFTS, LoadOptions
from edgespec.bundle import Bundle
from edgespec.errors import ContextLengthError, InputError
from edgespec.measuring.bits import Bits
from edgespec.measuring.equality import worst
from edgespec.measuring.worker import Made, Request, Worker
from edgespec.runtime.deployment.demands import HOST
from edgespec.runtime.deployment.deployment import Deployment, deploy
from edgespec.runtime.deployment.memory import USUAL_CONTEXT
from edgespec.system.machine import available_bytes

PLAIN = "plain"
"""Name of the setting that the others are compared with."""

Report = Callable[[str], None]
"""Called before each text with a description of it."""

Span = tuple[float, float]
"""The smallest and the largest value."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Line:
    """The result of one setting.

    Times and speeds are the median of the repeats; their `range` is the smallest and the largest
    of them.

    Attributes:
        name: plain, or the draft source.
        engine: engine that ran the target.
        context: maximum number of tokens of prompt and output together.
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
        outside_engines_ms: mean time per round outside engine calls; too low with overlap, where
            two engines count at once.
        peak_rss_mb: peak resident memory of the process in MiB, file-backed pages included.
        equal_to_plain: the worst of `equality.VERDICTS` over the texts.
        verdicts: number of texts by verdict.
        texts: number of texts that were made.
        new_tokens: number of new tokens in all texts.
        rounds: number of rounds in all texts, without the prompts' passes.
        sources: number of rounds by draft source.
        exact: whether the engine promises that a row's bits do not depend on the other rows.
        bits: comparison of the rows' bits (`bits.compare_bits`); None if it was not made.
    """

    name: str
    engine: str
    context: int
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
    outside_engines_ms: float
    peak_rss_mb: float
    equal_to_plain: str
    verdicts: dict[str, int]
    texts: int
    new_tokens: int
    rounds: int
    sources: dict[str, int]
    exact: bool
    bits: Bits | None


class Setting(Protocol):
    """What makes the texts of a setting; see `Worker`."""

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of prompt and output together."""

    def make(self, request: Request) -> Made:
        """Makes a text, without what earlier texts taught."""

    def plain(self, request: Request) -> list[int]:
        """Makes the same text by plain decoding; returns its tokens."""

    def verdict(self, request: Request, expected: Sequence[int], found: Sequence[int]) -> str:
        """See `Judge.verdict`."""

    def bits(self, text: Sequence[int], positions: int) -> Bits:
        """Compares the bits of the logits at the last positions of a text."""


class Bench:
    """A benchmark: settings of a bundle and the texts that each of them makes.

    Args:
        bundle: bundle that all settings load.
        options: options of all settings except the draft source. If they have no context, it is at
            most what the texts need or `USUAL_CONTEXT`, whichever is longer, so that memory is
            more likely to hold all settings at once.
        drafts: draft sources to compare with plain decoding.
        requests: at least one text; the first one is also the warm-up.
        bits: number of positions in each setting's first text at which the bits of the target's
            logits are compared; 0 for none.

    Attributes:
        settings: load options by name of the setting; `PLAIN` comes first.
        together: whether memory holds all settings at once.

    Raises:
        DeviceError: if a device does not exist.
        InputError: if an option does not suit the bundle.
        MemoryLimitError: if a setting does not fit the memory.
    """

    def __init__(
        self,
        bundle: Bundle,
        options: LoadOptions,
        drafts: Sequence[str],
        requests: Sequence[Request],
        bits: int = 0,
    ) -> None:
        self._bundle = bundle
        self._positions = bits
        self._requests = requests
        self.settings = {
            PLAIN if draft == "none" else draft: replace(
                options,
                draft=draft,
                pipeline=options.pipeline if draft in ("auto", *MODEL_DRAFTS) else "serial",
            )
            for draft in ("none", *drafts)
        }
        longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
        enough = max(longest, USUAL_CONTEXT)
        plans = {}
        for name, each in self.settings.items():
            plans[name] = deploy(bundle, each)
            plans[name].require_fit()
            context = each.context
            if context is None and plans[name].context > enough:
                context = enough
                plans[name] = deploy(bundle, replace(each, context=context))
            # Fixed limits, so that memory taken by the other settings does not change this plan.
            limits = {demand.device: demand.limit for demand in plans[name].devices}
            self.settings[name] = replace(each, context=context, memory=limits)
        self.together = _side_by_side(plans.values())
        if not self.together:
            _log.warning(
                "memory does not hold %d settings at once: they are loaded one after the other",
                len(plans),
            )

    def measure(self, repeats: int, report: Report = lambda what: None) -> list[Line]:
        """Makes all texts in all settings, `repeats` times.

        Args:
            repeats: number of repeats, at least one.
            report: see `Report`; `steps` returns the number of calls.

        Raises:
            ContextLengthError: if a prompt does not fit a setting's context.
            DeviceError: if a setting's process ends.
            InputError: if no text has more than one token.
        """
        requests = self._requests
        made: dict[str, list[list[Made]]] = {name: [] for name in self.settings}
        verdicts: dict[str, list[str]] = {name: [] for name in self.settings}
        bits: dict[str, Bits] = {}
        contexts = {}
        for names, turns in self._shifts(repeats):
            with self._loaded(names) as workers:
                for name, worker in workers.items():
                    contexts[name] = worker.context_length
                    _require_room(name, worker.context_length, requests)
                    report(f"{name}: warm-up")
                    worker.make(requests[0])
                for _ in range(turns):
                    for name in names:
                        made[name].append([])
                    for number, request in enumerate(requests, 1):
                        for name, worker in workers.items():
                            report(f"{name}: text {number} of {len(requests)}")
                            made[name][-1].append(worker.make(request))
                for name, worker in workers.items():
                    for texts in made[name][-turns:]:
                        verdicts[name] += _verdicts(worker, requests, texts, made[PLAIN][0])
                    if self._positions and name not in bits:
                        report(f"{name}: bits")
                        bits[name] = self._bits(worker, made[name][0][0])
        plain = median(map(_speed, made[PLAIN]))
        return [
            replace(
                _line(name, made[name], plain, contexts[name], verdicts[name]), bits=bits.get(name)
            )
            for name in made
        ]

    def _bits(self, worker: Setting, text: Made) -> Bits:
        tokens = [*self._requests[0].prompt, *text.result.tokens]
        return worker.bits(tokens, min(self._positions, len(tokens) - 1))

    def steps(self, repeats: int) -> int:
        """Returns how often `measure` reports: for texts, warm-ups and comparisons of bits."""
        texts, bits = len(self._requests), len(self.settings) if self._positions else 0
        made = sum(len(names) * (1 + turns * texts) for names, turns in self._shifts(repeats))
        return made + bits

    def _shifts(self, repeats: int) -> list[tuple[list[str], int]]:
        """Returns the settings that are loaded at the same time, and the number of repeats."""
        names = list(self.settings)
        if self.together:
            return [(names, repeats)]
        return [([name], 1) for _ in range(repeats) for name in names]

    @contextmanager
    def _loaded(self, names: Sequence[str]) -> Iterator[Mapping[str, Setting]]:
        with ExitStack() as stack:
            path = self._bundle.path.absolute()
            yield {
                name: stack.enter_context(Worker(name, path, self.settings[name])) for name in names
            }


def _side_by_side(plans: Iterable[Deployment]) -> bool:
    """Whether memory holds everything that these plans need."""
    needs: Counter[str] = Counter()
    room = {HOST: available_bytes()}  # a limit that the user sets is for each setting
    for planned in plans:
        for demand in planned.devices:
            needs[demand.device] += demand.total
            room.setdefault(demand.device, demand.limit)
    return all(needs[device] <= room[device] for device in needs)


def _require_room(name: str, context: int, requests: Sequence[Request]) -> None:
    for number, request in enumerate(requests, 1):
        if len(request.prompt) >= context:
            raise ContextLengthError(
                f"prompt {number} has {len(request.prompt)} tokens, and the context of {name} has "
                f"room for {context} including a new one: leave it out or raise --context"
            )


def _verdicts(
    worker: Setting, requests: Sequence[Request], texts: Sequence[Made], plain: Sequence[Made]
) -> Iterator[str]:
    """Yields one of `equality.VERDICTS` for each text.

    Plain decoding on another engine may give another text. Then the setting's own engine repeats
    the plain decoding.
    """
    for request, text, reference in zip(requests, texts, plain, strict=True):
        found, expected = text.result.tokens, reference.result.tokens
        if found != expected and text.result.engine != reference.result.engine:
            expected = worker.plain(request)
        # If memory is short, contexts may differ: only what fits both is compared.
        shorter = min(text.result, reference.result, key=lambda result: result.new_tokens)
        if shorter.finish_reason == "context":
            found, expected = found[: shorter.new_tokens], expected[: shorter.new_tokens]
        yield "yes" if found == expected else worker.verdict(request, expected, found)


def _line(
    name: str, repeats: Sequence[Sequence[Made]], plain: float, context: int, verdicts: list[str]
) -> Line:
    """Summarizes all texts of a setting; `plain` is the speed of plain decoding in tokens/s."""
    made = [text for texts in repeats for text in texts]
    results = [text.result for text in made]
    rounds = sum(result.rounds for result in results)
    speed, speeds = _middle([_speed(texts) for texts in repeats], 1)
    ttft, ttfts = _middle([median(t.result.ttft_ms for t in texts) for texts in repeats], 2)
    tpot, tpots = _middle([_tpot_ms(texts) for texts in repeats], 3)
    whole = sum(map(_seconds, made))
    draft = sum(text.draft_seconds for text in made)
    verify = sum(text.verify_seconds for text in made)
    engines = sum(result.engine_ms for result in results) / 1e3

    def of_a_round(seconds: float) -> float:
        return round(max(seconds, 0.0) * 1e3 / rounds, 3)

    return Line(
        name=name,
        engine=results[0].engine,
        context=context,
        tokens_per_second=speed,
        tokens_per_second_range=speeds,
        speedup_vs_plain=round(median(map(_speed, repeats)) / plain, 3),
        ttft_ms=ttft,
        ttft_ms_range=ttfts,
        tpot_ms=tpot,
        tpot_ms_range=tpots,
        mean_accepted_length=round(sum(result.new_tokens - 1 for result in results) / rounds, 3),
        acceptance_by_depth=acceptance_by_depth([n for text in made for n in text.accepted]),
        draft_ms=of_a_round(draft),
        verify_ms=of_a_round(verify),
        other_ms=of_a_round(whole - draft - verify),
        outside_engines_ms=of_a_round(whole - engines),
        peak_rss_mb=max(result.peak_rss_mb for result in results),
        equal_to_plain=worst(verdicts),
        verdicts=dict(Counter(verdicts)),
        texts=len(made),
        new_tokens=sum(result.new_tokens for result in results),
        rounds=rounds,
        sources=dict(sum((Counter(result.sources) for result in results), Counter())),
        exact=results[0].exact,
        bits=None,
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


def _speed(texts: Sequence[Made]) -> float:
    """Returns the tokens per second of a repeat, without the first token of each text."""
    tokens, seconds = sum(text.result.new_tokens - 1 for text in texts), sum(map(_seconds, texts))
    if not tokens:
        raise InputError(
            "every text ends after its first token, so speed cannot be measured: give other prompts"
        )
    return tokens / seconds


def _tpot_ms(texts: Sequence[Made]) -> float:
    return median(text.result.tpot_ms for text in texts if text.result.new_tokens > 1)


def _seconds(text: Made) -> float:
    """Returns the time of all tokens after the first."""
    return text.result.tpot_ms * (text.result.new_tokens - 1) / 1e3
