"""Measures the seconds that calls of a compiled role take, by rows and capacity."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import numpy as np

from edgespec.bundle import Role
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.shapes import capacity_bucket

_QUICK_ROWS = (1, 2, 4, 8, 32)
_FULL_ROWS = (1, 2, 4, 8, 16, 32)
# Attention is linear in the capacity, so the curve's slope continues beyond the last of these.
_CAPACITIES = (256, 1024, 4096)
# What tells a quick measurement how much longer calls take behind a long text: rows, and a capacity
# whose caches a small machine has memory for.
_FAR_ROWS, _FAR = (1, 8), 2048

# Turns over all numbers of rows at one capacity: as many as fit into _SECONDS, within these bounds.
# A median needs three. After _LONG seconds fewer are enough: long calls average out disturbances.
_SECONDS, _LEAST_TURNS, _MOST_TURNS = 1.0, 3, 10
_LONG = 10.0
# Calls of one shape in a row. The first one includes the change of shape (up to 2 ms in OpenVINO)
# and does not count, since rounds of a text mostly repeat the shape of the previous round.
_CALLS = 3
_LONG_CALL = 0.05  # seconds: for longer calls the change of shape is negligible, one is enough


Points = Mapping[int, tuple[int, ...]]
"""Numbers of rows to measure by capacity, both ascending."""


def shapes(role: Role, full: bool) -> Points:
    """Returns what to measure of a role."""
    least, longest = _CAPACITIES[0], capacity_bucket(role.context_length)
    if not full:
        far = min(longest, _FAR)
        return {least: _QUICK_ROWS} | ({far: _FAR_ROWS} if far > least else {})
    most = min(longest, _CAPACITIES[-1])
    return dict.fromkeys(sorted({*(c for c in _CAPACITIES if c < most), most}), _FULL_ROWS)


def measure(model: Model, points: Points) -> Iterator[tuple[int, dict[int, list[float]]]]:
    """Times verifications: filling the inputs and the engine's call.

    Numbers of rows take turns, so that other load on the machine affects all of them alike. Rows
    have different tokens, as in a text: of a mixture of experts, equal ones would choose the same
    experts, and many rows would seem to cost no more than one.

    Args:
        model: a compiled role.
        points: numbers of rows of calls by capacity of the cache. The text fills each capacity
            except for the rows of the largest call there.

    Yields:
        After each turn, the capacity and the seconds of calls by their rows.
    """
    runner = Runner(model)
    most = max(map(max, points.values()))
    tokens = np.random.default_rng(0).integers(0, model.role.vocab_size, most).tolist()
    for capacity, rows in points.items():
        batches = [Rows.chain(tokens[:n]) for n in rows]
        runner.skip(capacity - max(rows) - runner.length)
        for batch in batches:  # warm-up: engines plan memory at the first call of a shape
            runner.verify(batch)
        spent = 0.0
        for turn in range(_MOST_TURNS):
            if spent > (_SECONDS if turn >= _LEAST_TURNS else _LONG):
                break
            begin = time.perf_counter()
            seconds = {len(batch.tokens): timed(runner, batch) for batch in batches}
            spent += time.perf_counter() - begin
            yield capacity, seconds


def timed(runner: Runner, rows: Rows) -> list[float]:
    """Returns the seconds of verifications in a row, without the first one unless it is long."""
    seconds = []
    for _ in range(_CALLS):
        begin = time.perf_counter()
        runner.verify(rows)
        seconds.append(time.perf_counter() - begin)
        if seconds[-1] >= _LONG_CALL:
            break
    return seconds[1:] or seconds
