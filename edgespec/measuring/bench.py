"""Draft sources against plain decoding on this machine: the same texts, made in turns.

Each setting has a process of its own (`worker`), and text by text they take turns, so that what
else the machine does falls on all of them. Where memory does not hold them side by side, they
take turns by repeats, loaded anew each time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from statistics import median

from edgespec.bundle import Bundle
from edgespec.errors import ContextLengthError, InputError
from edgespec.measuring.bits import Bits
from edgespec.measuring.equality import worst
from edgespec.measuring.worker import Made, Request, Worker
from edgespec.runtime.deployment.demands import HOST
from edgespec.runtime.deployment.deployment import Deployment, deploy
from edgespec.runtime.deployment.memory import USUAL_CONTEXT
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.engines import available_bytes

PLAIN = "plain"
"""The setting that others are compared with."""

Report = Callable[[str], None]
"""Is told of each text before it is made."""

Span = tuple[float, float]

_MODEL_DRAFTS = ("auto", "model")  # the others draft with no model that could overlap

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Line:
    """A setting's result.

    A time or speed is taken of each repeat; what counts is the median of the repeats, and its
    `range` is the least and the most of them.

    Attributes:
        name: plain, or the draft source.
        engine: where the target ran.
        context: tokens of prompt and output together.
        tokens_per_second: all tokens of a repeat after each text's first, by their time.
        tokens_per_second_range: see above.
        speedup_vs_plain: of `tokens_per_second`.
        ttft_ms: time to the first token, the median of the repeat's texts.
        ttft_ms_range: see above.
        tpot_ms: time per further token, the same way.
        tpot_ms_range: see above.
        mean_accepted_length: tokens a round.
        acceptance_by_depth: share of the rounds that accepted one draft token or more, two or more
            and so on; together they are the accepted draft tokens of a round.
        draft_ms: of a round, on average.
        verify_ms: of a round; with overlap also what is drafted meanwhile.
        other_ms: of a round: choosing, committing, observing, and decoding the text.
        outside_engines_ms: of a round, what passed outside the engines' calls; with overlap two
            engines count at once, and it is too low.
        peak_rss_mb: the process's largest resident memory, MiB, file-backed pages included.
        equal_to_plain: the worst of `equality.VERDICTS` on the texts.
        verdicts: how many texts there are of each.
        texts: that were made.
        new_tokens: of all texts.
        rounds: of all texts, the prompts' passes left out.
        sources: rounds by who drafted.
        exact: whether the target's rows are promised to be the same bits in all company.
        bits: of its rows, where they were compared (`bits.compare_bits`); None: they were not.
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


class Bench:
    """Settings of a bundle, and the texts that each of them is to make.

    Args:
        bundle: what all of them load.
        options: how, but for the draft source. Where no context is said, it is no longer than the
            texts need and `USUAL_CONTEXT`, so that memory rather holds all settings side by side.
        drafts: the sources beside plain decoding.
        requests: at least one text; the first one also warms up.
        bits: positions of each setting's first text at which the bits of its target's logits are
            compared as well; 0: none.

    Attributes:
        settings: how each is loaded, by its name; `PLAIN` first.
        together: whether memory holds all of them side by side.

    Raises:
        DeviceError: if a device does not exist.
        InputError: if an option does not suit the bundle.
        MemoryLimitError: if a setting does not fit memory.
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
                pipeline=options.pipeline if draft in _MODEL_DRAFTS else "serial",
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
            # What the others take meanwhile is no reason to plan otherwise.
            limits = {demand.device: demand.limit for demand in plans[name].devices}
            self.settings[name] = replace(each, context=context, memory=limits)
        self.together = _side_by_side(plans.values())
        if not self.together:
            _log.warning(
                "memory does not hold %d settings side by side: they take turns by repeats",
                len(plans),
            )

    def measure(self, repeats: int, report: Report = lambda what: None) -> list[Line]:
        """Make all texts in all settings, `repeats` times.

        Args:
            repeats: at least one.
            report: see `Report`; `steps` says how often.

        Raises:
            ContextLengthError: if a prompt does not fit a setting's context.
            DeviceError: if a setting's process ends.
            InputError: if no text goes beyond its first token.
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

    def _bits(self, worker: Worker, text: Made) -> Bits:
        tokens = [*self._requests[0].prompt, *text.result.tokens]
        return worker.bits(tokens, min(self._positions, len(tokens) - 1))

    def steps(self, repeats: int) -> int:
        """How often `measure` reports: texts, warm-ups and comparisons of bits."""
        texts, bits = len(self._requests), len(self.settings) if self._positions else 0
        made = sum(len(names) * (1 + turns * texts) for names, turns in self._shifts(repeats))
        return made + bits

    def _shifts(self, repeats: int) -> list[tuple[list[str], int]]:
        """Settings that are loaded at the same time, and for how many repeats."""
        names = list(self.settings)
        if self.together:
            return [(names, repeats)]
        return [([name], 1) for _ in range(repeats) for name in names]

    @contextmanager
    def _loaded(self, names: Sequence[str]) -> Iterator[dict[str, Worker]]:
        with ExitStack() as stack:
            path = self._bundle.path.absolute()
            yield {
                name: stack.enter_context(Worker(name, path, self.settings[name])) for name in names
            }


def _side_by_side(plans: Iterable[Deployment]) -> bool:
    """Whether memory holds all that these plans take."""
    needs: Counter[str] = Counter()
    room = {HOST: available_bytes()}  # a limit of the user's is for each of them
    for planned in plans:
        for demand in planned.devices:
            needs[demand.device] += demand.total
            room.setdefault(demand.device, demand.limit)
    return all(needs[device] <= room[device] for device in needs)


def _require_room(name: str, context: int, requests: Sequence[Request]) -> None:
    for number, request in enumerate(requests, 1):
        if len(request.prompt) >= context:
            raise ContextLengthError(
                f"prompt {number} has {len(request.prompt)} tokens and the context of {name} holds "
                f"{context}, a new one included: leave it out or raise --context"
            )


def _verdicts(
    worker: Worker, requests: Sequence[Request], texts: Sequence[Made], plain: Sequence[Made]
) -> Iterator[str]:
    """One of `equality.VERDICTS` on each text.

    What plain decoding gives on another engine may rightly differ: then the setting's own engine
    decodes plainly, too.
    """
    for request, text, reference in zip(requests, texts, plain, strict=True):
        found, expected = text.result.tokens, reference.result.tokens
        if found != expected and text.result.engine != reference.result.engine:
            expected = worker.plain(request)
        # Where memory is short, settings have contexts of their own: what both had room for counts.
        shorter = min(text.result, reference.result, key=lambda result: result.new_tokens)
        if shorter.finish_reason == "context":
            found, expected = found[: shorter.new_tokens], expected[: shorter.new_tokens]
        yield "yes" if found == expected else worker.verdict(request, expected, found)


def _line(
    name: str, repeats: Sequence[Sequence[Made]], plain: float, context: int, verdicts: list[str]
) -> Line:
    """A setting's line from all its texts; `plain` is plain decoding's tokens per second."""
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
    """Share of the rounds that accepted one draft token or more, two or more, and so on.

    Args:
        accepted: draft tokens that each round accepted, of at least one round.
    """
    rounds = len(accepted)
    return tuple(
        round(sum(count >= depth for count in accepted) / rounds, 4)
        for depth in range(1, max(accepted) + 1)
    )


def _middle(values: Sequence[float], digits: int) -> tuple[float, Span]:
    """The median, the least and the most."""
    least, most = (round(end(values), digits) for end in (min, max))
    return round(median(values), digits), (least, most)


def _speed(texts: Sequence[Made]) -> float:
    """Tokens per second of a repeat, after the first token of each text."""
    tokens, seconds = sum(text.result.new_tokens - 1 for text in texts), sum(map(_seconds, texts))
    if not tokens:
        raise InputError(
            "no text goes beyond its first token, so there is no speed: give other prompts"
        )
    return tokens / seconds


def _tpot_ms(texts: Sequence[Made]) -> float:
    return median(text.result.tpot_ms for text in texts if text.result.new_tokens > 1)


def _seconds(text: Made) -> float:
    """That the tokens after the first took."""
    return text.result.tpot_ms * (text.result.new_tokens - 1) / 1e3
