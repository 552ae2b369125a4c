"""The search for skip sets at export: text, measurements and the search, put together.

`export` knows how to search and how to write a target that can be tried; here it meets `runtime`,
which runs what was written. See docs/layer-skip.md.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.bundle import SkipSet
from edgespec.errors import InputError
from edgespec.export.skipping.costs import PassCosts, probe_cuts, score
from edgespec.export.skipping.search import Problem, Tried, choose, search
from edgespec.export.skipping.sets import Trial, skip_cuts
from edgespec.runtime.deployment.device_names import engines_of
from edgespec.runtime.engines import Engine
from edgespec.runtime.execution.stage_files import suited
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.processors import default_threads
from edgespec.tuning.skip_trials import Evaluator, Text, measure_stages
from edgespec.tuning.texts import PASSAGES, PIECE, Piece, openings, pieces_of, read_text

DEFAULT_BUDGET = 60.0
"""Seconds."""

# The search's share of the budget; the rest is for measuring, and for what estimates miss.
_SEARCHING = 0.8
# Sets that there should be time for, which decides how much text each is tried on.
_WANTED, _MOST = 40, 120
_FEWEST_PIECES, _MOST_PIECES = 2, 8
_COMPARED_ROWS = 8  # of the verifications that decide between engines
_OPENING = 24  # tokens of ours before those that the model makes itself
_MAKING = 0.2  # share of the budget that making text may take
# A model that is surprised by a text nearly as much as by any other of its tokens.
_CHANCE = 0.9

Report = Callable[[int, int], None]
"""Is told how many sets were tried and how many will be."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchOptions:
    """How skip sets are searched and scored.

    Attributes:
        calibration: a text to try them on; None: what the model makes of a few openings.
        budget: seconds for all of it, more or less.
        evaluations: sets to try; None: as many as the budget has time for.
        pieces: of text that each is tried on, of `PIECE` tokens, at least two; None: by the budget.
        seed: of everything random.
        engine: that runs and is measured; cpu: the faster one for verifications.
        threads: for its operators; None: the physical cores.

    Raises:
        InputError: on a value out of range.
    """

    calibration: Path | None = None
    budget: float = DEFAULT_BUDGET
    evaluations: int | None = None
    pieces: int | None = None
    seed: int = 0
    engine: str = "cpu"
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.budget < math.inf:
            raise InputError(f"the layer-skip budget is {self.budget}: give seconds above 0")
        if self.pieces is not None and self.pieces < _FEWEST_PIECES:
            raise InputError(
                f"pieces is {self.pieces}: give {_FEWEST_PIECES} or more, for a greedy and a "
                "sampled one"
            )


@dataclass(frozen=True)
class TrialText:
    """What skip sets are tried on, as the target has read it.

    Attributes:
        searched: what sets are tried on.
        held_out: what those that are kept are scored on, since the best of many was lucky on the
            first; the same text where there is too little.
        piece_seconds: that a pass over a piece takes.
    """

    searched: Text
    held_out: Text
    piece_seconds: float


class LayerSkipSearch:
    """What `export_bundle` asks for skip sets; sets that it is given are scored.

    Args:
        options: see there.
        report: see `Report`.

    Attributes:
        summary: one line about what was found.

    Raises:
        InputError: if the calibration text cannot be used.
    """

    def __init__(self, options: SearchOptions, report: Report = lambda done, total: None) -> None:
        self._options = options
        self._report = report
        self._given_text = None if options.calibration is None else read_text(options.calibration)
        self._threads = options.threads or default_threads()
        self._engines = engines_of(options.engine)
        self._begin = 0.0
        self.summary = ""

    def __call__(self, trial: Trial, given: tuple[SkipSet, ...]) -> tuple[SkipSet, ...]:
        """See `export.skips.SkipSearch`."""
        self._begin = time.perf_counter()
        layout = trial.gated.target.layout
        if layout.layers < 2:
            _log.warning("no layer can be left out of a model that has %d", layout.layers)
            return given
        costs = self.probe(trial)
        evaluator = Evaluator(trial.gated, self.engine, self._threads)
        text = self.trial_text(trial, evaluator, costs)
        if given:
            sets, tried = [each.skipped for each in given], len(given)
        else:
            found, kept = self._search(trial, evaluator, costs, text)
            sets, tried = [each.skipped for each in kept], len(found)
        agreements = [evaluator.agreements(text.held_out, each) for each in sets]
        del evaluator, text  # before the stages come
        cuts = trial.cuts | skip_cuts(sets, layout)
        # From here on with what the stages take that all sets together cut.
        costs = costs.refined(measure_stages(trial.cut(cuts), self.engine, self._threads))
        scored = [
            SkipSet(skipped, score(skipped, agreed, costs, self.engine.name, cuts))
            for skipped, agreed in zip(sets, agreements, strict=True)
        ]
        scored.sort(key=_promised, reverse=True)
        best = layout.describe(scored[0].skipped)
        self.summary = self._summarize(best, scored, tried, 1 / costs.whole(1))
        return tuple(scored)

    @property
    def engine(self) -> Engine:
        """The one that runs everything behind `probe`."""
        return self._engines[0]

    def probe(self, trial: Trial) -> PassCosts:
        """What sublayers cost, from a cut in which each kind of them is alone.

        Of several engines the fastest stays.
        """
        layout = trial.gated.target.layout
        cut = trial.cut(probe_cuts(layout))
        found = [
            (PassCosts.from_probe(measure_stages(cut, each, self._threads), layout), each)
            for each in suited(trial.gated.target, self._engines)
        ]
        costs, fastest = min(found, key=lambda pair: pair[0].whole(_COMPARED_ROWS))
        self._engines = [fastest]
        return costs

    def trial_text(self, trial: Trial, evaluator: Evaluator, costs: PassCosts) -> TrialText:
        """Have text, as much as there is time for, and read it.

        Raises:
            InputError: if the user's text is too short or the tokenizer does not know it.
        """
        tokenizer = Tokenizer.from_folder(trial.gated.path)
        seconds = _piece_seconds(evaluator, tokenizer)
        options = self._options
        fitting = int(_SEARCHING * options.budget / (_WANTED * seconds))
        wanted = options.pieces or min(max(fitting, _FEWEST_PIECES), _MOST_PIECES)
        pieces = self._pieces(trial, evaluator, tokenizer, costs, 2 * wanted)
        # Every other piece, so that both halves come from all over the text.
        text = held_out = evaluator.read(pieces[::2])
        if len(pieces) >= 2 * _FEWEST_PIECES:
            held_out = evaluator.read(pieces[1::2])
        self._check_surprise(text, trial.gated.target.vocab_size)
        return TrialText(text, held_out, seconds)

    def problem(self, trial: Trial, evaluator: Evaluator, costs: PassCosts, text: Text) -> Problem:
        """What is searched."""
        return Problem(
            costs,
            self.engine.name,
            lambda skipped: evaluator.agreements(text, skipped),
            trial.cuts,
        )

    def _pieces(
        self,
        trial: Trial,
        evaluator: Evaluator,
        tokenizer: Tokenizer,
        costs: PassCosts,
        count: int,
    ) -> list[Piece]:
        """The user's text, the model's own, or if that takes too long, ours."""
        options, role = self._options, trial.gated.target
        if self._given_text is not None:
            return pieces_of(self._given_text, tokenizer, count, str(options.calibration))
        # The openings are short: what takes time is a call for each token behind them.
        making = (PIECE - _OPENING) * costs.whole(min(count, costs.rows[-1]))
        if making > _MAKING * options.budget:
            _log.info("trying sets on our own text: the model's would take %.0f s", making)
            return pieces_of("\n".join(PASSAGES), tokenizer, count, "the built-in text")
        never = {*role.eos_ids, *tokenizer.special_ids}
        never |= {*range(tokenizer.vocab_size, role.vocab_size)}
        # Some configs name an end of text that the model does not have.
        banned = sorted(each for each in never if each < role.vocab_size)
        return evaluator.continued(
            openings(tokenizer, _OPENING, count), PIECE, banned, options.seed
        )

    def _check_surprise(self, text: Text, vocabulary: int) -> None:
        chance = math.log(vocabulary)
        if self._given_text is not None and text.surprise > _CHANCE * chance:
            _log.warning(
                "%s: its tokens surprise the model by %.1f nats each, of any others it would be "
                "%.1f: scores on a text that it cannot read say little",
                self._options.calibration, text.surprise, chance,
            )  # fmt: skip

    def _search(
        self, trial: Trial, evaluator: Evaluator, costs: PassCosts, text: TrialText
    ) -> tuple[list[Tried], list[Tried]]:
        """All sets that were tried, and those to keep."""
        options = self._options
        problem = self.problem(trial, evaluator, costs, text.searched)
        left = _SEARCHING * options.budget - (time.perf_counter() - self._begin)
        fitting = int(left / (text.piece_seconds * len(text.searched.pieces)))
        evaluations = options.evaluations or min(max(fitting, 1), _MOST)

        def go_on(done: int, total: int) -> bool:
            self._report(done, total)
            over = time.perf_counter() - self._begin > options.budget
            return options.evaluations is not None or not over

        found = search(problem, evaluations, options.seed, go_on)
        return found, choose(found, problem)

    def _summarize(self, name: str, sets: Sequence[SkipSet], tried: int, uncut: float) -> str:
        """Of the best set, beside plain decoding, tokens/s of which are `uncut` in one stage."""
        seconds = time.perf_counter() - self._begin
        score = sets[0].score
        assert score is not None
        greedy, sampled = score.greedy, score.sampled
        speeds = (
            f"{greedy.tokens_per_second:.1f} tokens/s greedily and "
            f"{sampled.tokens_per_second:.1f} sampled against {uncut:.1f} of plain decoding, "
            f"{score.plain_tokens_per_second:.1f} with the target cut"
        )
        start = f"layer-skip: {tried} sets tried in {seconds:.0f} s, {len(sets)} kept"
        if max(greedy.tokens_per_second, sampled.tokens_per_second) <= uncut:
            return (
                f"{start}: none promises more than plain decoding, the best {name}: {speeds}; "
                "without --layer-skip the target is not cut"
            )
        return (
            f"{start}: {name} promises {speeds} ({score.engine}, "
            f"agreement {greedy.agreement:.0%} and {sampled.agreement:.0%})"
        )


def _promised(one: SkipSet) -> float:
    assert one.score is not None
    return one.score.tokens_per_second


def _piece_seconds(evaluator: Evaluator, tokenizer: Tokenizer) -> float:
    """Of a pass over a piece, the second time."""
    text = evaluator.read(pieces_of("\n".join(PASSAGES), tokenizer, 1, "the built-in text"))
    evaluator.agreements(text, ())
    begin = time.perf_counter()
    evaluator.agreements(text, ())
    return time.perf_counter() - begin
