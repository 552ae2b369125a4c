"""Which runs of layers a target can leave out and still draft well: a scan on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgespec import bundle as bundles
from edgespec.bundle import TARGET, Bundle, Promise, SkipScore, SkipSet
from edgespec.bundle.sublayers import Sublayers
from edgespec.errors import InputError
from edgespec.llm.load.models import load_model, load_part
from edgespec.runtime.arrays import Floats
from edgespec.runtime.kernels import library
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.sequences.model import AFTER, Model, PassCost, Rows
from edgespec.runtime.text.tokenizer import Tokenizer

_ROWS, _FIRST = 128, 16  # rows on which drafts are tried at most; the tokens before the first one
_LENGTHS = (0.15, 0.25, 0.35, 0.45, 0.55)  # shares of the layers that are tried
_STARTS = 8  # places at which a run of one length is tried
_CHAINS = range(1, 9)  # drafted tokens of a round by which sets are scored
_SECONDS = 0.5  # to measure what calls cost
_BUDGET = 120.0  # seconds after which no more runs are tried
_KEPT = 3  # sets that are written
_SAMPLED = SamplingOptions(temperature=0.8, seed=0)


@dataclass(frozen=True)
class _Trial:
    """A text that the target has read.

    Attributes:
        rows: for each position one token, as a sequence of its own that shares the text before.
        samplers: greedy and sampled.
        chosen: what the target chooses after each row, by sampler.
    """

    rows: list[Rows]
    samplers: tuple[Sampler, Sampler]
    chosen: list[list[int]]

    def agreements(self, part: Model) -> list[float]:
        """Returns how often a part of the target chooses as the target does, by sampler."""
        logits = part.forward(self.rows)
        for rows in self.rows:
            rows.accept([])
        return [
            float(np.mean(np.equal(_choices(self.rows, logits, sampler), chosen)))
            for sampler, chosen in zip(self.samplers, self.chosen, strict=True)
        ]


def scan(
    bundle: Bundle,
    text: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
    threads: int | None = None,
) -> list[SkipSet]:
    """Finds runs of layers that pay to leave out, and writes the best ones to the manifest.

    A draft's first token after each position is compared with the target's choice there, greedy and
    at temperature 0.8, with the target's own keys and values before it. Longer drafts are judged by
    that alone.

    Args:
        bundle: the bundle, whose manifest is changed.
        text: some text of the kind that is to be generated, of a hundred words or more.
        progress: called with the number of runs tried, and of all.
        threads: number of threads; None: as `LoadOptions`.

    Returns:
        The sets that promise to be faster than plain decoding, the best first.

    Raises:
        InputError: if no draft can be a part of the target, or the text is too short.
    """
    begin = time.perf_counter()
    target_role = bundle.target
    if target_role.recurrent or target_role.native.adopted or library() is None:
        raise InputError(
            f"{bundle.path}: no draft can leave layers out of a target with recurrent layers, of "
            "one that another program exported, or without edgespec's compiled operators: leave "
            "out --layer-skip"
        )
    tokenizer = Tokenizer.of(bundle)
    target = load_model(bundle, TARGET, Placement(HOST), threads)
    trial = _trial(target, tokenizer, text)
    passes = PassCost.measure(target, _SECONDS)
    scored = []
    runs = list(_runs(target_role.layout))
    for number, skipped in enumerate(runs):
        if time.perf_counter() - begin > _BUDGET:
            break
        progress(number + 1, len(runs))
        part = load_part(bundle, target, skipped, threads)
        agreed = trial.agreements(part)
        kept = 1 - len(skipped) / target_role.layout.head
        scored.append((_score(agreed, passes, kept * passes.seconds(1)), skipped))
    scored.sort(key=lambda each: -each[0].tokens_per_second)
    measured = []
    for score, skipped in scored[: 2 * _KEPT]:  # of these, costs are measured
        calls = PassCost.measure(load_part(bundle, target, skipped, threads), _SECONDS)
        agreed = [score.greedy.agreement, score.sampled.agreement]
        measured.append((_score(agreed, passes, calls.seconds(1)), skipped))
    measured.sort(key=lambda each: -each[0].tokens_per_second)
    sets = [SkipSet(skipped, score) for score, skipped in measured[:_KEPT] if score.pays]
    bundles.save_manifest(bundle.path, replace(bundle.manifest, skip_sets=tuple(sets)))
    return sets


def describe_skips(bundle: Bundle) -> str:
    """Says which sublayers drafts of a bundle leave out, and what that promises."""
    layout = bundle.target.layout
    lines = []
    for each in bundle.manifest.skip_sets:
        line = f"layer-skip: drafts leave out {layout.describe(each.skipped)}"
        if each.score is not None:
            line += ", " + " and ".join(
                f"{each.score.speedup(sampled):.2f}x plain decoding {name}"
                for sampled, name in ((False, "greedy"), (True, "sampled"))
            )
        lines.append(line)
    return "\n".join(lines) or "layer-skip: leaving out layers promises no gain"


def _runs(layout: Sublayers) -> Iterator[tuple[int, ...]]:
    """Yields runs of whole layers, those of the middle first, whose keys no other layer reads."""
    layers = layout.layers
    for length in sorted({max(1, round(share * layers)) for share in _LENGTHS}):
        step = max(1, (layers - length) // _STARTS)
        starts = range(0, layers - length + 1, step)
        for start in sorted(starts, key=lambda start: abs(2 * start + length - layers)):
            skipped = range(layout.first(start), layout.first(start + length))
            if not layout.bereft(skipped):
                yield tuple(skipped)


def _trial(target: Model, tokenizer: Tokenizer, text: str) -> _Trial:
    tokens = tokenizer.encode(text)[: _ROWS + _FIRST]
    if len(tokens) < 2 * _FIRST:
        raise InputError(f"the text has {len(tokens)} tokens: give {2 * _FIRST} or more")
    whole = target.sequence(tokens)
    places = range(_FIRST, len(tokens))
    rows = Rows(whole, tokens, [AFTER, *range(len(tokens) - 1)], list(places))
    [logits] = target.forward([rows])
    rows.accept(range(len(tokens)))
    tried = [Rows(whole.fork(place), [tokens[place]], [AFTER], [0]) for place in places]
    whole.free()
    samplers = tuple(Sampler(each, tokenizer.vocab_size) for each in (SamplingOptions(), _SAMPLED))
    chosen = [_choices(tried, list(logits), sampler) for sampler in samplers]
    return _Trial(tried, (samplers[0], samplers[1]), chosen)


def _choices(rows: Sequence[Rows], logits: Sequence[Floats], sampler: Sampler) -> list[int]:
    places = [each.sequence.length + 1 for each in rows]
    found = [row.reshape(-1) for row in logits]
    return [sampler.choose(row, place) for row, place in zip(found, places, strict=True)]


def _score(agreed: Sequence[float], passes: PassCost, call: float) -> SkipScore:
    """Returns what chains of drafts promise, given the seconds of a draft's call for one row."""
    promises = []
    for agreement in agreed:
        rates = {}
        for count in _CHAINS:
            tokens = sum(agreement**number for number in range(count + 1))
            rates[count] = tokens / (count * call + passes.seconds(1 + count))
        chain = max(rates, key=rates.__getitem__)
        promises.append(Promise(agreement, chain, rates[chain]))
    plain = passes.seconds(1)
    return SkipScore(call / plain, 1 / plain, "cpu:native", promises[0], promises[1])
