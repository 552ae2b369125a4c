"""Passes that are queued on a model's device, and what it says of rows there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from edgespec.runtime.arrays import Floats, Ids
from edgespec.runtime.sequences.model import AFTER, Model, Rows


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
        for rows in (rows for each in passes for rows in each):
            model.pool.free(rows.slots)
            rows.slots = []
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
    expected = [model.cost.seconds(rows) for rows in sizes]
    factor = seconds / sum(expected)
    for rows, each in zip(sizes, expected, strict=True):
        model.cost.observe(rows, each * factor)
