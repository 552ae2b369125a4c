"""What calls of a compiled role cost: seconds by rows and capacity, measured here and now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from edgespec.bundle import Role
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.shapes import capacity_bucket

_QUICK_ROWS = (1, 2, 4, 8, 32)
_FULL_ROWS = (1, 2, 4, 8, 16, 32)
# Attention is linear in the capacity: beyond the last of these the curve's slope goes on.
_CAPACITIES = (256, 1024, 4096)

# Turns over all numbers of rows at one capacity: as many as fit the time, within these bounds. A
# median needs three; fewer are enough where they take long, since moments of luck are short.
_SECONDS, _LEAST_TURNS, _MOST_TURNS = 1.0, 3, 10
_LONG = 10.0
# Calls of one shape in a row. The first of them pays for the change of shape (up to 2 ms in
# OpenVINO) and does not count: the rounds of a text mostly repeat the shape of those before.
_CALLS = 3
_LONG_CALL = 0.05  # seconds of a call beside which that is little: one is enough


def shapes(role: Role, full: bool) -> tuple[Sequence[int], Sequence[int]]:
    """Numbers of rows and capacities to measure, ascending."""
    if not full:
        return _QUICK_ROWS, _CAPACITIES[:1]
    most = min(capacity_bucket(role.context_length), _CAPACITIES[-1])
    return _FULL_ROWS, sorted({*(c for c in _CAPACITIES if c < most), most})


def measure(
    model: Model, rows: Sequence[int], capacities: Sequence[int]
) -> Iterator[tuple[int, dict[int, list[float]]]]:
    """Time verifications: filling the inputs, and the engine's call.

    Numbers of rows take turns, so that what else the machine does falls on all of them.

    Args:
        model: a compiled role.
        rows: of a call, each at most as many as the smallest capacity holds.
        capacities: buckets of the cache, ascending. The text fills them up to the largest call.

    Yields:
        After each of several turns at a capacity: that, and seconds of calls by their rows.
    """
    runner = Runner(model)
    batches = [Rows.chain([0] * n) for n in rows]
    for capacity in capacities:
        runner.skip(capacity - max(rows) - runner.length)
        for batch in batches:  # the first call of a shape plans for it
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
    """Seconds of some verifications in a row, without a short one that changes the shape."""
    seconds = []
    for _ in range(_CALLS):
        begin = time.perf_counter()
        runner.verify(rows)
        seconds.append(time.perf_counter() - begin)
        if seconds[-1] >= _LONG_CALL:
            break
    return seconds[1:] or seconds
