"""Trials of layer-skip drafts on a target during export: their agreement, and the stages' cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt

from edgespec.bundle import TARGET, Bundle, Role
from edgespec.export.skipping.costs import Agreements, StageTimes
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines import Cache, Engine, Executable, StageOutputs
from edgespec.runtime.execution.feeds import START, Feeds, Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.tuning.texts import GREEDY, SAMPLED, WARM_UP, Piece

Tokens = npt.NDArray[np.int64]

TIMED_ROWS = (1, 2, 4, 8, 16)

DRAFTED_ROWS = 2
"""Number of earlier drafted rows that each row sees, as in the middle of a chain of five."""

_TIMED_LENGTH = 224  # rows in the cache before timed calls; with 16 more the first capacity is full
_TURNS, _LEAST_TURNS, _TURNS_SECONDS = 20, 3, 2.0


@dataclass(frozen=True)
class Text:
    """Pieces of text that the whole model has read.

    Attributes:
        runner: runner that holds all pieces as scratch rows, one after the other.
        starts: first scratch row of each piece.
        pieces: tokens of each piece.
        choices: the target's choice after every token of each piece, by temperature.
        surprise: mean negative log-likelihood of the target, in nats per token.
    """

    runner: Runner
    starts: Sequence[int]
    pieces: Sequence[Tokens]
    choices: Sequence[Mapping[float, Tokens]]
    surprise: float


class Evaluator:
    """Runs a target whose sublayers can be switched off.

    Args:
        gated: bundle with gates, see `export.skipping.sets.Trial`.
        engine: engine to run it on.
        threads: number of threads of the engine.
    """

    def __init__(self, gated: Bundle, engine: Engine, threads: int) -> None:
        compiled = Model.load(gated, TARGET, engine, threads)
        self._model = _GatedModel(compiled.role, compiled.executables, compiled.device)
        self._samplers = {
            temperature: Sampler(
                SamplingOptions(temperature=temperature, seed=0), compiled.role.vocab_size
            )
            for temperature in (GREEDY, SAMPLED)
        }

    def read(self, pieces: Sequence[Piece]) -> Text:
        """Lets the whole model read pieces of text, each independent of the others."""
        runner, starts, choices, surprises = Runner(self._model), [], [], []
        for piece in pieces:
            rows, start = len(piece.tokens), runner.scratch
            mask = np.zeros((rows, start + rows), np.bool_)
            mask[:, start:] = np.tri(rows, dtype=np.bool_)
            logits = runner.draft(Rows(piece.tokens, range(rows), mask))["logits"][:rows]
            starts.append(start)
            choices.append({t: self._chosen(logits, t, start) for t in piece.temperatures})
            surprises.append(_surprise(logits[:-1], np.array(piece.tokens[1:])))
        tokens = [np.array(piece.tokens) for piece in pieces]
        return Text(runner, starts, tokens, choices, float(np.concatenate(surprises).mean()))

    def agreements(self, text: Text, skipped: Sequence[int]) -> Agreements:
        """Finds where a draft without these sublayers chooses the same tokens as the target."""
        found: dict[float, list[npt.NDArray[np.bool_]]] = {GREEDY: [], SAMPLED: []}
        drafted = self.drafted(text, skipped)
        for logits, start, choices in zip(drafted, text.starts, text.choices, strict=True):
            for temperature, expected in choices.items():
                agreed = self._chosen(logits, temperature, start) == expected
                found[temperature].append(agreed[WARM_UP:])
        return Agreements(found[GREEDY], found[SAMPLED])

    def drafted(self, text: Text, skipped: Sequence[int]) -> Iterator[Array]:
        """Computes the logits of a draft without these sublayers, after every token of the pieces.

        One pass per piece. As in a round, every row sees the last few rows as the draft computes
        them, and all earlier rows as the target computed them.

        Yields:
            Logits of each piece, [tokens, V], valid until the next call.
        """
        for tokens, start in zip(text.pieces, text.starts, strict=True):
            rows = len(tokens)
            mask = np.zeros((rows, text.runner.scratch + rows), np.bool_)
            exact = np.tri(rows, k=-DRAFTED_ROWS - 1, dtype=np.bool_)
            mask[:, start : start + rows] = exact
            mask[:, text.runner.scratch :] = np.tri(rows, dtype=np.bool_) & ~exact
            self._model.gates[list(skipped)] = 0
            results = text.runner.verify(Rows(tokens, range(rows), mask))
            self._model.gates[:] = 1
            yield results["logits"][:rows]

    def _chosen(self, logits: Array, temperature: float, start: int) -> Tokens:
        """Chooses a token for each of n rows of logits, with the noise of positions from `start`.

        A draft ranks its candidates by the same rule, and this is the one it would put first.
        """
        choose = self._samplers[temperature].choose
        return np.array([choose(row, start + place, ()) for place, row in enumerate(logits)])

    def continued(
        self, openings: Sequence[Piece], length: int, banned: Sequence[int], seed: int
    ) -> list[Piece]:
        """Lets the model continue texts, all of them in the same calls.

        Args:
            openings: beginnings of the texts, shorter than `length`, each with a temperature.
            length: number of tokens of the finished texts.
            banned: tokens that are never chosen.
            seed: seed of the noise.
        """
        runner, rng = Runner(self._model), np.random.default_rng(seed)
        heat = np.array([[opening.temperature or GREEDY] for opening in openings])
        texts = [list(opening.tokens) for opening in openings]

        def chosen(logits: Array, who: Sequence[int]) -> list[int]:
            """Samples by the Gumbel-max trick."""
            noisy = logits + heat[who] * rng.gumbel(size=logits.shape)
            noisy[:, list(banned)] = -np.inf
            return [int(token) for token in noisy.argmax(1)]

        owners = np.zeros(0, np.int64)  # which text each scratch row belongs to
        for number, text in enumerate(texts):
            own = np.full(len(text), number)
            mask = np.hstack([own[:, None] == owners, np.tri(len(text), dtype=np.bool_)])
            logits = runner.draft(Rows(text, range(len(text)), mask))["logits"]
            text.extend(chosen(logits[len(text) - 1 : len(text)], [number]))
            owners = np.append(owners, own)
        while unfinished := [n for n, text in enumerate(texts) if len(text) < length]:
            own = np.array(unfinished)
            mask = own[:, None] == np.append(owners, own)
            rows = Rows(
                [texts[number][-1] for number in unfinished],
                [len(texts[number]) - 1 for number in unfinished],
                mask,
            )
            logits = runner.draft(rows)["logits"][: len(own)]
            for number, token in zip(unfinished, chosen(logits, unfinished), strict=True):
                texts[number].append(token)
            owners = np.append(owners, own)
        return [replace(each, tokens=text) for each, text in zip(openings, texts, strict=True)]


def measure_stages(bundle: Bundle, engine: Engine, threads: int) -> StageTimes:
    """Times the stages of a target, alternating between the numbers of rows."""
    compiled = Model.load(bundle, TARGET, engine, threads)
    stages = [_Timed(executable) for executable in compiled.executables]
    model = Model(compiled.role, stages, compiled.device, compiled.shapes)
    runner = Runner(model)
    runner.skip(_TIMED_LENGTH)
    batches = [Rows([0] * n, range(n), np.tri(n, dtype=np.bool_), [START] * n) for n in TIMED_ROWS]
    for batch in batches:  # an engine's first call with a new shape is slower
        runner.verify(batch)
    samples: list[list[list[float]]] = [[] for _ in batches]
    hosts, begin = [], time.perf_counter()
    for turn in range(_TURNS):
        if turn >= _LEAST_TURNS and time.perf_counter() - begin > _TURNS_SECONDS:
            break
        for batch, taken in zip(batches, samples, strict=True):
            runner.verify(batch)  # absorbs the cost of the change of shape
            start = time.perf_counter()
            runner.verify(batch)
            runner.draft(batch)
            seconds = time.perf_counter() - start
            runner.forget_scratch()
            taken += [[stage.seconds[call] for stage in stages] for call in (-2, -1)]
            if len(batch.tokens) == 1:
                hosts.append((seconds - sum(map(sum, taken[-2:]))) / 2)
    borders = (*(stage.start for stage in compiled.role.stages), compiled.role.stages[-1].stop)
    return StageTimes(
        borders, TIMED_ROWS, np.array([np.median(taken, 0) for taken in samples]), median(hosts)
    )


class _GatedModel(Model):
    """A model of one stage whose input `gates` switches sublayers on and off for all calls."""

    def __init__(self, role: Role, executables: Sequence[Executable], device: str) -> None:
        super().__init__(role, executables, device)
        self.gates = np.ones(role.layout.head, np.float32)

    def feeds(self, rows: int, capacity: int, logit_rows: int, scratch: int = 0) -> Feeds:
        """See `Model`."""
        feeds = super().feeds(rows, capacity, logit_rows, scratch)
        feeds.stages[0]["gates"] = self.gates
        return feeds


class _Timed:
    """A stage that records the time of its calls."""

    def __init__(self, stage: Executable) -> None:
        self._stage = stage
        self.seconds: list[float] = []

    def new_cache(self, capacity: int, most: int) -> Cache:
        """See `Executable`."""
        return self._stage.new_cache(capacity, most)

    def run(self, feeds: Mapping[str, Array], cache: Cache) -> StageOutputs:
        """See `Executable`."""
        start = time.perf_counter()
        outputs = self._stage.run(feeds, cache)
        self.seconds.append(time.perf_counter() - start)
        return outputs


def _surprise(logits: Array, tokens: Tokens) -> npt.NDArray[np.float64]:
    """Computes the negative log-likelihood of each of n tokens, [n] nats."""
    wide = logits.astype(np.float64)
    peak = wide.max(1)
    found: npt.NDArray[np.float64] = (
        np.log(np.exp(wide - peak[:, None]).sum(1)) + peak - wide[np.arange(len(tokens)), tokens]
    )
    return found
