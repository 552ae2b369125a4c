"""The search for skip sets during export, from text and measurements to scored sets.

This connects `export`, which has the search algorithm and writes targets to try, with `runtime`,
which runs them. See docs/layer-skip.md.
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
"""Default time for the search in seconds."""

# Share of the budget for the search; the rest is for measurements and errors of the estimate.
_SEARCHING = 0.8
# Number of sets that should be tried at least, which limits the text for each, and at most.
_WANTED, _MOST = 40, 120
_FEWEST_PIECES, _MOST_PIECES = 2, 8
_COMPARED_ROWS = 8  # rows of the verifications by which engines are compared
_OPENING = 24  # tokens of a built-in opening before those that the model generates
_MAKING = 0.2  # share of the budget for generating text
# A text is unsuitable if it surprises the model by more than this share of random tokens' surprise.
_CHANCE = 0.9

Report = Callable[[int, int], None]
"""Called with the number of sets that were tried, and the number of all sets to try."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchOptions:
    """Options of the search for skip sets.

    Attributes:
        calibration: file with a text to try sets on; None for text that the model generates.
        budget: approximate time for everything in seconds.
        evaluations: number of sets to try; None for as many as the budget allows.
        pieces: number of pieces of `PIECE` tokens that each set is tried on, at least two; None
            for as many as the budget allows.
        seed: random seed.
        engine: engine to run and measure; cpu for the one with faster verifications.
        threads: number of threads of the engine; None for the number of physical cores.

    Raises:
        InputError: if a value is out of range.
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
            raise InputError(f"the layer-skip budget is {self.budget}: give more than 0 seconds")
        if self.pieces is not None and self.pieces < _FEWEST_PIECES:
            raise InputError(
                f"pieces is {self.pieces}: give at least {_FEWEST_PIECES}, for one greedy and one "
                "sampled piece"
            )


@dataclass(frozen=True)
class TrialText:
    """The text that skip sets are tried on, as read by the target.

    Attributes:
        searched: text for the search.
        held_out: text for the final scores, since the best of many sets was partly lucky on
            `searched`; the same text if there is too little.
        piece_seconds: time of a pass over one piece.
    """

    searched: Text
    held_out: Text
    piece_seconds: float


class LayerSkipSearch:
    """Search for skip sets, to be called by `export_bundle`. Sets that are given are only scored.

    Args:
        options: options of the search.
        report: see `Report`.

    Attributes:
        summary: one line about the result.

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
        """Searches and scores skip sets, see `export.skipping.sets.SkipSearch`."""
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
        del evaluator, text  # frees memory before the stages are loaded
        cuts = trial.cuts | skip_cuts(sets, layout)
        # From here on, costs are measured on stages that are cut for all kept sets.
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
        """The engine in use, after `probe` has chosen it."""
        return self._engines[0]

    def probe(self, trial: Trial) -> PassCosts:
        """Measures the cost of sublayers, on stages that isolate each kind, and picks the engine.

        The fastest of several engines is used from then on.
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
        """Gets as much text as the budget allows, and lets the target read it.

        Raises:
            InputError: if the user's text is too short or the tokenizer does not know it.
        """
        tokenizer = Tokenizer.from_folder(trial.gated.path)
        seconds = _piece_seconds(evaluator, tokenizer)
        options = self._options
        fitting = int(_SEARCHING * options.budget / (_WANTED * seconds))
        wanted = options.pieces or min(max(fitting, _FEWEST_PIECES), _MOST_PIECES)
        pieces = self._pieces(trial, evaluator, tokenizer, costs, 2 * wanted)
        # Alternate pieces, so that both halves come from all parts of the text.
        text = held_out = evaluator.read(pieces[::2])
        if len(pieces) >= 2 * _FEWEST_PIECES:
            held_out = evaluator.read(pieces[1::2])
        self._check_surprise(text, trial.gated.target.vocab_size)
        return TrialText(text, held_out, seconds)

    def problem(self, trial: Trial, evaluator: Evaluator, costs: PassCosts, text: Text) -> Problem:
        """Returns the search problem."""
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
        """Returns pieces of the user's text, else of text that the model generates.

        If generating takes too long, the built-in text is used.
        """
        options, role = self._options, trial.gated.target
        if self._given_text is not None:
            return pieces_of(self._given_text, tokenizer, count, str(options.calibration))
        # The openings are short: most of the time goes into one call per generated token.
        making = (PIECE - _OPENING) * costs.whole(min(count, costs.rows[-1]))
        if making > _MAKING * options.budget:
            _log.info("using the built-in text: generating text would take %.0f s", making)
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
                "%s: the model's loss on it is %.1f nats per token, and %.1f on random tokens: "
                "scores on a text that the model does not understand mean little",
                self._options.calibration, text.surprise, chance,
            )  # fmt: skip

    def _search(
        self, trial: Trial, evaluator: Evaluator, costs: PassCosts, text: TrialText
    ) -> tuple[list[Tried], list[Tried]]:
        """Returns all sets that were tried, and those to keep."""
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
        """Describes the best set.

        Args:
            name: name of the best set.
            sets: scored sets, the best first.
            tried: number of sets that were tried.
            uncut: speed of plain decoding in tokens/s with the target in one stage.
        """
        seconds = time.perf_counter() - self._begin
        score = sets[0].score
        assert score is not None
        greedy, sampled = score.greedy, score.sampled
        speeds = (
            f"{greedy.tokens_per_second:.1f} tokens/s greedy and "
            f"{sampled.tokens_per_second:.1f} sampled; plain decoding has {uncut:.1f}, or "
            f"{score.plain_tokens_per_second:.1f} with the target cut into stages"
        )
        start = f"layer-skip: {tried} sets tried in {seconds:.0f} s, {len(sets)} kept"
        if max(greedy.tokens_per_second, sampled.tokens_per_second) <= uncut:
            return (
                f"{start}: no set is expected to beat plain decoding, the best is {name} with "
                f"{speeds}; export without --layer-skip to leave the target uncut"
            )
        return (
            f"{start}: {name} is expected to reach {speeds} ({score.engine}, "
            f"agreement {greedy.agreement:.0%} and {sampled.agreement:.0%})"
        )


def _promised(one: SkipSet) -> float:
    assert one.score is not None
    return one.score.tokens_per_second


def _piece_seconds(evaluator: Evaluator, tokenizer: Tokenizer) -> float:
    """Measures the time of a pass over one piece, after a first pass as warm-up."""
    text = evaluator.read(pieces_of("\n".join(PASSAGES), tokenizer, 1, "the built-in text"))
    evaluator.agreements(text, ())
    begin = time.perf_counter()
    evaluator.agreements(text, ())
    return time.perf_counter() - begin
