"""Rows of the comparison: what each way's texts come to, and how far ahead of others that is."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from peers import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from peers import Made
    from peers.turns import Task, Way

OURS = "edgespec"
START = "start"
"""The test of processes that begin: its first tasks make what the others find."""
_WAITS = ("first", "second", START)  # tests of which the seconds to the first token are told
_TOGETHER = "several"  # the test whose prompts are part of its texts' time


@dataclass(frozen=True)
class Row:
    """What a way's texts of a test come to: medians of all texts.

    Attributes:
        way: who made them, and how.
        texts: how many, those at once as one.
        value: tokens a second behind the first, or seconds to the first token.
        least: the least of these.
        most: the most of these.
        cpu: milliseconds of processor time a token, or seconds of it to the first token.
        joules: a token; None: they were not told, or it is about the first.
        equal: how many texts are the way's peer's plain ones, such as 3 of 4.
        a_round: tokens that a pass of the target gives behind the first, of all texts together;
            None: it was not told, or it is about the first.
        begun: seconds to the first token of a first start, which makes what the others find.
    """

    way: Way
    texts: int
    value: float
    least: float
    most: float
    cpu: float
    joules: float | None
    equal: str
    a_round: float | None = None
    begun: float | None = None


def is_wait(test: str) -> bool:
    """Whether a test tells seconds, of which fewer are better."""
    return test in _WAITS


def row_of(
    test: str, way: Way, made: Mapping[Task, Made], plain: Mapping[Task, Made]
) -> Row | None:
    """Returns a way's row of a test; None if it made nothing.

    Args:
        test: its name.
        way: who made the texts.
        made: what was made.
        plain: the same of the peer's plain decoding.
    """
    begun = [each.first for task, each in made.items() if test == START and not task.number]
    counted = [each for task, each in made.items() if test != START or task.number]
    wait = is_wait(test)
    numbers = [found for each in counted if (found := _numbers(test, each)) is not None]
    if not numbers:
        return None
    values, costs, joules = zip(*numbers, strict=True)
    told = [each for each in joules if each is not None]
    equal = [made[task].tokens == plain[task].tokens for task in made if task in plain]
    return Row(
        way,
        len(values),
        round(median(values), 3 if wait else 2),
        round(min(values), 3 if wait else 2),
        round(max(values), 3 if wait else 2),
        round(median(costs), 3 if wait else 2),
        round(median(told), 2) if len(told) == len(values) else None,
        f"{sum(equal)} of {len(equal)}",
        None if wait else _a_round(counted),
        round(median(begun), 3) if begun else None,
    )


def ratio(row: Row, others: Iterable[Row], wait: bool) -> float | None:
    """Returns how many times the speed, or seconds, of the best of others a row has."""
    values = [other.value for other in others]
    if not values:
        return None
    return row.value / (min(values) if wait else max(values))


def peers_of(rows: Sequence[Row], plain: bool = False) -> list[Row]:
    """Returns the rows of others, all of them or those of their plain decoding."""
    theirs = [row for row in rows if row.way[0] != OURS]
    return [row for row in theirs if row.way[1] == PLAIN] if plain else theirs


def overview(found: Mapping[str, Sequence[Row]]) -> list[list[object]]:
    """Returns a table with a line each way and a column each test, then ours to the best peer's."""
    ways = dict.fromkeys(row.way for rows in found.values() for row in rows)
    table = list[list[object]]()
    for way in ways:
        cells = [next((row.value for row in found[test] if row.way == way), "") for test in found]
        table.append([*way, *cells])
    for way in ways:
        if way[0] == OURS:
            plain = way[1] == PLAIN
            best = "the fastest plain peer" if plain else "the fastest peer"
            table.append([f"{way[1]} to {best}", "", *_ratios(way, found, plain)])
    return table


def _ratios(way: Way, found: Mapping[str, Sequence[Row]], plain: bool) -> list[str]:
    cells = list[str]()
    for test, rows in found.items():
        own = next((row for row in rows if row.way == way), None)
        times = own and ratio(own, peers_of(rows, plain), is_wait(test))
        cells.append("" if times is None else f"{times:.2f}")
    return cells


def _a_round(texts: Iterable[Made]) -> float | None:
    """Returns accepted tokens and one more, the mean of all rounds; None if some are not told."""
    further = accepted = 0
    for made in texts:
        if made.accepted is None:
            return None
        further += sum(len(tokens) - 1 for tokens in made.tokens)
        accepted += made.accepted
    return round(further / (further - accepted), 2) if further > accepted else None


_Numbers = tuple[float, float, float | None]


def _numbers(test: str, made: Made) -> _Numbers | None:
    """Returns what a row has of texts: value, processor time and joules; None if they are empty."""
    if is_wait(test):
        return made.first, made.first_cpu, None
    together = test == _TOGETHER
    tokens = sum(len(text) - (not together) for text in made.tokens)
    if not tokens:
        return None
    seconds = made.seconds - (0 if together else made.first)
    cpu = made.cpu - (0 if together else made.first_cpu)
    joules = None if made.joules is None else made.joules / tokens
    return tokens / seconds, 1e3 * cpu / tokens, joules
