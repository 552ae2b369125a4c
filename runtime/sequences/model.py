"""A model: passes over rows of several sequences, each with a tree below its last slot."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import copysign, exp, inf, log
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from edgespec.bundle import FEATURES, LAST_HIDDEN, LOGITS
from edgespec.bundle.sublayers import rope_inputs
from edgespec.errors import InputError
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.sequences.adapters import adapter_inputs
from edgespec.runtime.sequences.pictures import pictured
from edgespec.runtime.sequences.pool import KVPool, Slots, TokenSequence
from edgespec.runtime.sequences.prefixes import Checkpoints, PrefixTree

if TYPE_CHECKING:
    from edgespec.bundle import RopeTable

Graph = Callable[[Mapping[str, Array]], Mapping[str, Floats]]
"""Makes a pass: inputs by name, to outputs by name. `logits` are [R, V] float32; `features`, which
draft heads read and few graphs have, [S, F]."""

NATIVE = "cpu:native"
"""Name of the engine whose rows have the same bits in any company."""

AFTER = -1
"""Parent of the rows directly behind a sequence's last slot."""

_GUESS = 0.01  # seconds of a pass of which nothing is known
_POSITIONS = 1024  # whose rotations are computed at first
_KNOTS = (1, 2, 4, 5, 8, 9, 16, 32, 64)  # rows between which the curve is linear
_ALL_ROWS = np.arange(_KNOTS[-1] + 1.0)
_ENDS = np.array([0.0, *_KNOTS])
_MEASURED = (4, 8, 5, 2, 16, 1)
_REPEATS = 2
_SLOPE = 0.25  # of the cost of one row, for a further row where only one was measured
_CLIP = 0.3  # largest error, in log seconds, that one pass corrects: it may be an outlier
# Shares of an error that all knots take, and those of its rows besides. What else runs makes passes
# of any rows longer: so all follow it soon, and the form of the curve takes many passes to change.
_DRIFT, _OWN = 0.1, 0.03


@dataclass(eq=False, slots=True)
class Rows:
    """Rows of one sequence in a pass: tokens that follow it, as a tree.

    Attributes:
        sequence: what they follow.
        tokens: token of each row.
        parents: number of the row that each follows, an earlier one; `AFTER`: the sequence, and
            its `branch`.
        wanted: numbers of the rows whose logits are wanted.
        branch: slots of rows that follow the sequence and are not part of it (yet).
        slots: after the pass, the slot of each row, which the caller owns until it accepts rows.
        features: after the pass, [n, F] float32 of each row; None if the graph gives none.
        reads: further inputs of the graph, [n, ...] each, the same ones for all rows of a pass.
        certain: how many of the first rows, a chain that the others follow, are accepted whatever
            the pass finds; recurrent layers keep less of them. 0 with a branch.
    """

    sequence: TokenSequence
    tokens: list[int]
    parents: list[int]
    wanted: list[int]
    branch: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    features: Floats | None = None
    reads: Mapping[str, Array] = field(default_factory=dict)
    certain: int = 0

    def accept(self, rows: Sequence[int]) -> None:
        """Appends these rows to the sequence, a path from its end; frees the others."""
        slots = self.slots
        self.slots = []
        if len(rows) == len(slots):
            self.sequence.append(slots)
            return
        kept = [slots[row] for row in rows]
        self.sequence.append(kept)
        inside = set(kept)
        self.sequence.pool.free([slot for slot in slots if slot not in inside])


class RotationTable:
    """Cosines and sines of all positions so far; a position's are always the same bits.

    Rotary position embedding: Su et al., RoFormer, 2021.

    Args:
        table: frequencies. Where one is 0, nothing is rotated or scaled.
        axes: see `bundle.PixelGrid.axes`; empty: all pairs turn by one position.

    Attributes:
        inputs: names of a graph's inputs for cosines and sines.
    """

    def __init__(self, table: RopeTable, axes: Sequence[int] = ()) -> None:
        self.inputs = rope_inputs(table.name)
        self._inv_freq = np.asarray(table.inv_freq, np.float64)
        self._pairs = np.arange(len(self._inv_freq))
        self._by = np.array(axes or [0] * len(self._inv_freq))
        self._scale = np.where(self._inv_freq == 0, 1.0, table.attention_factor)
        self._growth = table.growth
        self._cos = self._sin = np.empty((0, self._inv_freq.size), np.float32)

    def at(self, positions: Array, last: int) -> tuple[Floats, Floats]:
        """Returns cosines and sines of n rows, each [n, head_dim / 2] float32.

        Args:
            positions: [n] int64, of the rows; or [n, 3], by what `axes` name.
            last: the largest of them, or a larger one.
        """
        if last >= len(self._cos):
            count = max(last + 1, 2 * len(self._cos), _POSITIONS)
            angles = np.arange(count, dtype=np.float64)[:, None] * self._inv_freq
            scale = self._scale
            if self._growth is not None:
                scale = scale * np.array(self._growth.factors(count))[:, None]
            cos = (scale * np.cos(angles)).astype(np.float32)
            self._sin = (scale * np.sin(angles)).astype(np.float32)
            self._cos = cos  # last, since its length is asked for: a signal may interrupt here
        if np.ndim(positions) == 1:
            return self._cos.take(positions, 0), self._sin.take(positions, 0)
        rows = positions[:, self._by]
        return self._cos[rows, self._pairs], self._sin[rows, self._pairs]


class LongPasses(NamedTuple):
    """Long passes of a model that makes them otherwise than short ones.

    Attributes:
        least: rows of one sequence from which a pass is long; what it takes says nothing of others.
        chunk: rows of a prompt that are read in one pass where nothing else waits.
    """

    least: int
    chunk: int


def longest_part(feeds: Mapping[str, Array]) -> int:
    """Returns how many rows of a pass are those of one sequence, at most."""
    return int(np.bincount(feeds["sequence"]).max())


@runtime_checkable
class RankingGraph(Protocol):
    """A graph that also ranks rows, on a device that goes on by itself.

    Attributes:
        longest: largest number of rows of a call.
    """

    longest: int

    def best(self, calls: Sequence[Mapping[str, Array]]) -> list[Floats]:
        """Makes passes of which each reads the likeliest tokens of the one before.

        None waits for another. Each has one row for each row whose logits the one before wants.

        Args:
            calls: inputs of each; all but the first have any `input_ids`.

        Returns:
            For each pass [wanted rows, 2 K] float32: of each row the K likeliest tokens, the best
            first, and then their logits.

        Raises:
            DeviceError: if the device fails.
        """


class PassCost:
    """Seconds of a pass by number of rows, never decreasing.

    Args:
        points: measured seconds by number of rows; at least one. What lies beyond them is
            continued with the last slope.
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        rows = sorted(points)
        slope = points[rows[0]] * _SLOPE
        if len(rows) > 1:
            less, more = rows[-2:]
            slope = max(points[more] - points[less], 0.0) / (more - less)
        self._logs = [
            log(max(_interpolated(rows, [points[n] for n in rows], slope, knot), 1e-9))
            for knot in _KNOTS
        ]
        self._by_rows: list[float] = []  # computed when it is asked for

    @classmethod
    def measure(cls, model: Model, most_seconds: float) -> PassCost:
        """Returns what timed passes tell; see `Model.measuring`."""
        for _ in model.measuring(most_seconds):
            pass
        return model.cost

    def seconds(self, rows: int) -> float:
        """Returns the expected seconds of a pass; of none for 0 rows."""
        by_rows = self._by_rows or self._refreshed()
        if rows < len(by_rows):
            return by_rows[rows]
        return by_rows[-1] + self._slope * (rows + 1 - len(by_rows))

    def further(self, rows: int, count: int) -> list[float]:
        """Returns the seconds of passes of `rows` rows and 1 to `count` further ones."""
        by_rows = self._by_rows or self._refreshed()
        if rows + count < len(by_rows):
            return by_rows[rows + 1 : rows + count + 1]
        return [self.seconds(rows + n) for n in range(1, count + 1)]

    def observe(self, rows: int, seconds: float) -> None:
        """Corrects the curve by the duration of one pass."""
        error = log(max(seconds, 1e-9) / self.seconds(rows))
        error = copysign(min(abs(error), _CLIP), error)
        right = min(bisect_left(_KNOTS, rows), len(_KNOTS) - 1)
        near = {right, max(right - 1, 0)} if _KNOTS[right] > rows else {right}
        for knot in range(len(_KNOTS)):
            self._logs[knot] += (_DRIFT + _OWN * (knot in near)) * error
        self._by_rows = []

    def _refreshed(self) -> list[float]:
        """Computes the curve again: seconds by number of rows up to the last knot."""
        knots = list(accumulate(map(exp, self._logs), _possible))
        self._slope = (knots[-1] - knots[-2]) / (_KNOTS[-1] - _KNOTS[-2])
        self._by_rows = np.interp(_ALL_ROWS, _ENDS, np.array([0.0, *knots])).tolist()
        return self._by_rows


class Model:
    """A model whose passes take rows of any number of sequences.

    A row's logits have the same bits in any company: they depend on the tokens before it alone.

    Args:
        graph: makes passes.
        pool: the cache.
        ropes: rotation tables in use.
        prefixes: see below; None for a new tree, of a pool that no other model has.
        device: name of the engine or device that runs it.

    Attributes:
        pool: see above.
        prefixes: what its sequences leave for others that begin alike.
        device: see above.
        graph: see above.
        cost: what its passes take, which each pass corrects; `measuring` finds it out.
        queued_cost: likewise, of a pass that is queued behind another, for whose answer nobody
            waits; None: nothing is known of these.
        seconds: time inside the graph so far.
        computes: whether it is in a graph that keeps no account of memory, or was when an error
            came.
        halves: whether it computes in half precision.
        gives_features: whether its passes give what a draft head reads.
        picture_width: size of the rows of pictures that it reads; 0 if it reads none.
        adapts: whether adapters of sequences add to it.
        ranking: the graph if it ranks rows where it runs; None if their logits are read.
        long_passes: how it makes long passes; None: as all others.
    """

    def __init__(
        self,
        graph: Graph,
        pool: KVPool,
        ropes: Sequence[RotationTable],
        prefixes: PrefixTree | Checkpoints | None = None,
        device: str = NATIVE,
    ) -> None:
        self.pool = pool
        self.device = device
        if prefixes is None:
            prefixes = PrefixTree(pool) if pool.recurrent is None else Checkpoints(pool)
        self.prefixes = prefixes
        self.graph = graph
        self.cost = PassCost({1: _GUESS})
        self.queued_cost: PassCost | None = None
        self.seconds = 0.0
        self.computes = False
        self.halves = False
        self.gives_features = False
        self.picture_width = 0
        self.adapts = False
        self.ranking = graph if isinstance(graph, RankingGraph) else None
        self.long_passes: LongPasses | None = None
        self._ropes = ropes

    @property
    def further_cost(self) -> PassCost:
        """What a pass takes that is queued behind another, as far as that is known."""
        return self.queued_cost or self.cost

    def measuring(self, most_seconds: float) -> Iterator[None]:
        """Times a pass for each step of the iterator, which makes `cost` truer.

        A first pass, which reads weights from the disk, doesn't count. The pool is as before after
        each step.

        Args:
            most_seconds: no pass is begun that is expected to end later, but for the first two.
        """
        if not self.seconds:
            _timed(self, 1)
            yield
        points = dict[int, float]()
        spent = 0.0
        for rows in (1, *_MEASURED * _REPEATS):
            if points and spent + PassCost(points).seconds(rows) > most_seconds:
                return
            seconds, took = _timed(self, rows)
            # Others may take the processor for a while, so the least is nearest to the truth.
            points[rows] = min(points.get(rows, inf), seconds)
            spent += took
            self.cost = PassCost(points)
            yield

    def close(self) -> None:
        """Frees the graph and what is in the pool, whoever still refers to the model."""
        self.graph = _closed
        self.ranking = None
        self.pool.close()

    def reset(self) -> None:
        """Forgets all that it has read, whoever has slots."""
        self.prefixes.reset()
        self.pool.reset()

    def sequence(self, tokens: list[int]) -> TokenSequence:
        """Returns a sequence of these tokens, of which the model has read none."""
        return TokenSequence(self.pool, tokens)

    def forward(self, batch: Sequence[Rows]) -> list[Floats]:
        """Makes a pass, and gives the rows their slots.

        Args:
            batch: rows of at least one sequence.

        Returns:
            For each part of the batch [wanted rows, V] float32; of a model that makes embeddings
            [wanted rows, hidden_size].

        Raises:
            MemoryLimitError: if the pool has no room for the rows.
            DeviceError: if the graph fails.
        """
        try:
            return self._forward(batch)
        except BaseException:
            self.drop(batch)
            if self.pool.recurrent is not None:  # of some layers, states may be new
                for each in batch:
                    each.sequence.free()
            raise

    def _forward(self, batch: Sequence[Rows]) -> list[Floats]:
        begin = time.perf_counter()
        feeds = self.prepare(batch)
        feeds.update(self.pool.arrays)
        called = time.perf_counter()
        self.computes = self.device == NATIVE  # a device's graph keeps account of places, too
        outputs = self.graph(feeds)
        self.computes = False
        end = time.perf_counter()
        self.seconds += end - called
        if self.long_passes is None or longest_part(feeds) < self.long_passes.least:
            self.cost.observe(len(feeds["write"]), end - begin)
        logits = outputs[LOGITS if LOGITS in outputs else LAST_HIDDEN]
        features = outputs.get(FEATURES)
        self.gives_features = features is not None
        parts = []
        row = 0
        wanted = 0
        for each in batch:
            own = slice(row, row + len(each.tokens))
            each.features = None if features is None else features[own]
            parts.append(logits[wanted : wanted + len(each.wanted)])
            row = own.stop
            wanted = wanted + len(each.wanted)
        return parts

    def drop(self, batch: Sequence[Rows]) -> None:
        """Frees the slots of rows that nobody has accepted."""
        for each in batch:
            slots = each.slots
            each.slots = []
            self.pool.free(slots)

    def prepare(self, batch: Sequence[Rows]) -> dict[str, Array]:
        """Gives rows their slots; returns what the graph reads besides the pool's arrays.

        Raises:
            MemoryLimitError: see `forward`.
        """
        feeds, positions = _inputs(batch)
        slots = self.pool.take(len(positions))
        row = 0
        for each in batch:  # before anything else, so that who is interrupted can free them
            each.slots = slots[row : row + len(each.tokens)]
            row += len(each.tokens)
        feeds["write"] = np.array(slots, np.int32)
        last = max(positions)
        places = np.array(positions, np.int64)
        turned = places
        if self.picture_width:
            ends = [*accumulate(len(each.tokens) for each in batch)]
            read = [each.sequence.pictures for each in batch]
            parts_of = [*zip(read, np.split(places, ends[:-1]), strict=True)]
            feeds.update(pictured(parts_of, self.picture_width))
            if any(each is not None and each.turns is not None for each in read):
                turned = np.concatenate(
                    [of.turned(own) if of else own[:, None].repeat(3, 1) for of, own in parts_of]
                )
        for rope in self._ropes:
            cos, sin = rope.inputs
            feeds[cos], feeds[sin] = rope.at(turned, last)
        if self.adapts:
            rows = [(each.sequence.adapters, len(each.tokens)) for each in batch]
            feeds.update(adapter_inputs(rows))
        if self.pool.recurrent is not None:
            feeds.update(self.pool.recurrent.inputs(batch, slots))
        return feeds


def _closed(feeds: Mapping[str, Array]) -> Mapping[str, Floats]:
    """Stands for the graph of a model that was closed."""
    raise InputError("the model was closed: load it again")


def _inputs(batch: Sequence[Rows]) -> tuple[dict[str, Array], list[int]]:
    """Returns a graph's inputs but for slots and rotations, and the rows' positions."""
    tokens: list[int] = []
    parents: list[int] = []
    owners: list[int] = []
    wanted: list[int] = []
    positions: list[int] = []
    contexts: list[Slots] = []
    starts = [0]
    for number, rows in enumerate(batch):
        first = len(tokens)
        length = rows.sequence.length + len(rows.branch)
        tokens += rows.tokens
        owners += [number] * len(rows.tokens)
        for parent in rows.parents:
            parents.append(parent if parent < 0 else parent + first)
            positions.append(length if parent < 0 else positions[parent + first] + 1)
        wanted += [row + first for row in rows.wanted]
        contexts.append(rows.sequence.slots)
        if rows.branch:
            contexts.append(np.array(rows.branch, np.int32))
        starts.append(starts[-1] + length)
    feeds: dict[str, Array] = {
        "input_ids": np.array(tokens, np.int64),
        "parent": np.array(parents, np.int32),
        "sequence": np.array(owners, np.int32),
        "context": contexts[0] if len(contexts) == 1 else np.concatenate(contexts),
        "starts": np.array(starts, np.int32),
        "logit_rows": np.array(wanted, np.int64),
    }
    for name in batch[0].reads:
        feeds[name] = np.concatenate([rows.reads[name] for rows in batch])
    return feeds, positions


def _possible(half: float, seconds: float) -> float:
    """Returns what a pass may take, by one of half the rows: not less, and no more than two."""
    return min(max(seconds, half), 2 * half)


def _interpolated(xs: list[int], ys: list[float], slope: float, x: int) -> float:
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1] + slope * (x - xs[-1])
    right = bisect_left(xs, x)
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])


def _timed(model: Model, count: int) -> tuple[float, float]:
    """Returns the seconds that a pass takes by itself, and those that it took."""
    sequence = model.sequence([])
    rows = Rows(sequence, [0] * count, [AFTER, *range(count - 1)], list(range(count)))
    begin = time.perf_counter()
    worked = time.process_time()
    if model.ranking is not None and count <= model.ranking.longest:
        try:
            model.ranking.best([{**model.prepare([rows]), **model.pool.arrays}])
        except BaseException:
            model.drop([rows])
            raise
        model.seconds += time.perf_counter() - begin
    else:
        model.forward([rows])
    took = time.perf_counter() - begin
    worked = time.process_time() - worked
    rows.accept([])
    # One of its threads at least works all the time, so the rest was waiting for the processor.
    return min(took, worked) if model.device == NATIVE else took, took
