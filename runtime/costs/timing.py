"""Measures the seconds that calls of a compiled role take, by rows and capacity."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from edgespec.bundle import Bundle, Role
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.shapes import capacity_bucket
from edgespec.runtime.text.tokenizer import Tokenizer

_QUICK_ROWS = (1, 2, 4, 8, 32)
_FULL_ROWS = (1, 2, 4, 8, 16, 32)
# The first rows of a call to a mixture of experts read this, over and over if need be.
_TEXT = (
    "When a program starts, it reads its settings from a file, checks that every value makes "
    "sense, and only then opens the connection to the server. If something is missing, it says "
    "what to do about it and stops without losing any data."
)
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


def usual_tokens(bundle: Bundle, name: str, count: int) -> list[int]:
    """Returns the tokens that the rows of measured calls have, [count].

    A pass of a mixture of experts takes the longer the more experts its rows choose, and rows with
    random tokens do not choose as many as those of a text. So a mixture reads a text. Of other
    models tokens do not matter, and random ones spare loading the tokenizer.

    Args:
        bundle: the bundle.
        name: name of the role.
        count: number of tokens.
    """
    role = bundle.manifest.roles[name]
    if any(each.experts for each in role.layout) and not role.tokenizer:
        ids = Tokenizer.from_folder(bundle.path).encode(_TEXT, add_special=False)
        ids = [token for token in ids if token < role.vocab_size]
        if len(set(ids)) > 1:  # or else the tokenizer knows no word of it
            return (ids * (count // len(ids) + 1))[:count]
    random: list[int] = np.random.default_rng(0).integers(0, role.vocab_size, count).tolist()
    return random


def measure(
    model: Model, points: Points, tokens: Sequence[int]
) -> Iterator[tuple[int, dict[int, list[float]]]]:
    """Times verifications: filling the inputs and the engine's call.

    Numbers of rows take turns, so that other load on the machine affects all of them alike.

    Args:
        model: a compiled role.
        points: numbers of rows of calls by capacity of the cache. The text fills each capacity
            except for the rows of the largest call there.
        tokens: tokens of the rows, at least as many as the largest call has; see `usual_tokens`.

    Yields:
        After each turn, the capacity and the seconds of calls by their rows.
    """
    runner = Runner(model)
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
