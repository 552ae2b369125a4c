"""Passes that are queued on a model's device, and what it says of rows there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from edgespec.errors import MemoryLimitError
from edgespec.runtime.arrays import Floats, Ids
from edgespec.runtime.sequences.model import AFTER, Model, PassCost, Rows

_TIMED = (1, 8)  # sequences of queues that are timed
_LENGTH = 5  # passes of each
_REPEATS = 3  # the first makes plans, and a device may record the second


@dataclass(frozen=True, eq=False)
class RankedRows:
    """What a device says of the rows of one sequence.

    Attributes:
        tokens: [n, K] int64, the likeliest tokens of the wanted rows and then of the further ones,
            the best first.
        logits: [n, K] float32, theirs.
        slots: of the further rows, which the caller owns.
    """

    tokens: Ids
    logits: Floats
    slots: list[int] = field(default_factory=list)


def ranked_rows(model: Model, batch: Sequence[Rows], further: int = 0) -> list[RankedRows]:
    """Makes a pass as `Model.forward` does, and queues further ones behind it.

    Each of these has one row for each sequence, whose token is the likeliest one behind the row
    before. So the host waits for the device once, whatever the number of passes.

    Args:
        model: a model that ranks rows.
        batch: rows of at least one sequence, no more than its longest call has. Each wants one row
            if there are further passes.
        further: their number.

    Returns:
        For each part of the batch what the device says of its rows.

    Raises:
        MemoryLimitError: if the pool has no room for the rows.
        DeviceError: if the device fails.
    """
    assert model.ranking is not None, "whoever asks knows that it ranks rows"
    begin = time.perf_counter()
    passes = [list(batch)]
    calls = []
    try:
        for _ in range(further):
            calls.append(model.prepare(passes[-1]))
            passes.append([_behind(rows) for rows in passes[-1]])
        calls.append(model.prepare(passes[-1]))
        for feeds in calls:  # the pool may have grown until now
            feeds.update(model.pool.arrays)
        found = model.ranking.best(calls)
    except BaseException:
        for each in passes:
            model.drop(each)
        raise
    _observe(model, [len(feeds["write"]) for feeds in calls], time.perf_counter() - begin)
    ranked = []
    row = 0
    for number, rows in enumerate(batch):
        end = row + len(rows.wanted)
        own = np.concatenate([found[0][row:end], *(each[[number]] for each in found[1:])])
        tokens, logits = np.split(own, 2, axis=1)
        slots = [each[number].slots[0] for each in passes[1:]]
        ranked.append(RankedRows(tokens.astype(np.int64), logits, slots))
        row = end
    return ranked


def measuring(model: Model, most_seconds: float) -> Iterator[None]:
    """Times passes as `Model.measuring` does, and queues of them.

    Args:
        model: a model that ranks rows.
        most_seconds: see `Model.measuring`; as long may queues take, but for the first ones.
    """
    yield from model.measuring(most_seconds)
    points = dict[int, float]()
    begin = time.perf_counter()
    for sequences in _TIMED if model.pool.recurrent is None else _TIMED[:1]:
        if points and time.perf_counter() - begin > most_seconds:
            return
        try:
            _, points[sequences] = chain_seconds(model, sequences)
        except MemoryLimitError:
            return  # a short context has no room for so many
        model.queued_cost = PassCost(points)
        yield


def chain_seconds(model: Model, sequences: int = 1) -> tuple[float, float]:
    """Times chains of a model that ranks rows.

    Args:
        model: the model.
        sequences: their number; each pass has a row of each.

    Returns:
        Seconds of a chain's first pass, and of each one that is queued behind it.
    """
    alone = queue = inf
    for _ in range(_REPEATS):
        alone = min(alone, _timed(model, sequences, 0))
        queue = min(queue, _timed(model, sequences, _LENGTH - 1))
    # No less than half of their share, since others may have held up the pass alone.
    return alone, max(queue - alone, queue / 2) / (_LENGTH - 1)


def _timed(model: Model, sequences: int, further: int) -> float:
    batch = [Rows(model.sequence([]), [1], [AFTER], [0]) for _ in range(sequences)]
    begin = time.perf_counter()
    found = ranked_rows(model, batch, further)
    seconds = time.perf_counter() - begin
    for rows, ranked in zip(batch, found, strict=True):
        model.pool.free([*rows.slots, *ranked.slots])
    return seconds


def _behind(rows: Rows) -> Rows:
    """Returns a row behind the wanted one of some rows."""
    [row] = rows.wanted
    path = []
    while row != AFTER:
        path.append(rows.slots[row])
        row = rows.parents[row]
    return Rows(rows.sequence, [0], [AFTER], [0], [*rows.branch, *reversed(path)])


def _observe(model: Model, sizes: Sequence[int], seconds: float) -> None:
    """Corrects a model's costs by the duration of several passes, as each has its share in it."""
    model.seconds += seconds
    costs = [model.cost, *[model.further_cost] * (len(sizes) - 1)]
    expected = [cost.seconds(rows) for cost, rows in zip(costs, sizes, strict=True)]
    factor = seconds / sum(expected)
    for cost, rows, each in zip(costs, sizes, expected, strict=True):
        cost.observe(rows, each * factor)
