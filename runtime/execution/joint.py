"""Passes of a model that several texts share: weights are read once for all of them.

The products of a pass are over the rows of all texts at once, which costs little more than over
those of one; each text attends to its own cache. So that a call can read them, texts that share
passes sit at a table (`table`).
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterator, Sequence

import numpy as np

from edgespec.bundle import FEATURES
from edgespec.runtime.execution.failures import NamedFailures
from edgespec.runtime.execution.feeds import FeedSizes, Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Results, Runner
from edgespec.runtime.execution.sharing import parts, reading
from edgespec.runtime.execution.table import Table
from edgespec.runtime.shapes import BORDER
from edgespec.runtime.trees.company import PassCost

Asked = tuple[Runner, Rows]
"""A text, and the rows that it wants to verify."""

_OF_ALL_ROWS = (FEATURES, "next_hidden")  # other results have the rows that logits are wanted for
_NO_ROWS = Rows((), (), np.zeros((0, 0), np.bool_))  # of a text that has a seat and waits


class JointPasses:
    """Verifies rows of several texts of one model in as few calls as possible.

    Texts of very different lengths share none where that costs less, see `sharing`, and never those
    on both sides of `BORDER`, since calls before it use no larger capacity. What cannot be shared
    is verified alone.

    Args:
        model: the model.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._failures = NamedFailures(model.device)
        groups = [group for stage in model.role.stages for group in stage.cache_groups]
        self._cost = reading(model.weight_bytes, groups)
        self._tables = dict[int, Table]()  # by the most rows of their texts, see `_most_rows`
        self._playing = weakref.WeakSet[Runner]()  # those whose text goes on

    def verify(self, asked: Sequence[Asked]) -> Iterator[list[tuple[int, Results]]]:
        """Verifies what the texts ask for; each commits before the next pass.

        Yields:
            For each pass, the numbers of its texts in `asked` and their results, see
            `Runner.verify`.
        """
        # At once, since a text may become longer when it commits.
        tables = self.tables([runner for runner, _ in asked])
        alone = [number for number, most in enumerate(tables) if most is None]
        by_table = dict[int, list[int]]()
        for number, most in enumerate(tables):
            if most is not None:
                by_table.setdefault(most, []).append(number)
        for most, numbers in by_table.items():
            for part in self._parts(asked, numbers):
                if len(part) == 1:
                    self._send_off(asked[part[0]][0], besides=most)
                    alone += part
                    continue
                seats = self._tables.setdefault(most, Table(self._model, self._playing))
                results = self._together(seats, [asked[n] for n in part])
                yield list(zip(part, results, strict=True))
        for number in alone:
            runner, rows = asked[number]
            yield [(number, runner.verify(rows))]

    def tables(self, runners: Sequence[Runner]) -> list[int | None]:
        """Returns the table of each text's next pass; None: its pass is its own.

        Texts at one table share passes, unless these had more rows than a call may have.
        """
        joining = [runner for runner in runners if runner.joins]
        self._playing.update(joining)
        found = self._seating() if joining else {}
        return [found[runner] if runner in joining else None for runner in runners]

    def timed(self, asked: Sequence[Asked]) -> Iterator[tuple[PassCost, list[tuple[int, Results]]]]:
        """Does the same as `verify`, and says what each pass took."""
        begin = time.perf_counter()
        for made in self.verify(asked):
            rows = sum(len(asked[number][1].tokens) for number, _ in made)
            yield PassCost(len(made), rows, time.perf_counter() - begin), made
            begin = time.perf_counter()

    def stand(self, runner: Runner) -> None:
        """A text goes on alone: it gets caches of its own, as large as it needs."""
        self._send_off(runner)

    def leave(self, runner: Runner) -> None:
        """A text is over: its seat is free for others, and its rows stay until one wants it."""
        self._playing.discard(runner)

    def _seating(self) -> dict[Runner, int]:
        """Returns the table of each text that goes on, and clears away those that none needs."""
        lengths = [(runner, _most_rows(runner)) for runner in self._playing]
        found = dict[Runner, int]()
        for before in (True, False):
            mine = [(runner, most) for runner, most in lengths if runner.before_border is before]
            if self._model.seats_on_device:  # a new table beside the old is more than was planned
                together = [BORDER if before else sys.maxsize] * len(mine)
            else:
                together = parts([most for _, most in mine], self._cost)
            found.update(zip((runner for runner, _ in mine), together, strict=True))
        if self._model.seats_on_device:
            for table in self._tables.values():
                table.tidy()
            return found
        for most in self._tables.keys() - found.values():
            self._tables.pop(most).clear()
        return found

    def _send_off(self, runner: Runner, besides: int = 0) -> None:
        """Gives a text caches of its own, unless it sits at the table `besides`."""
        for most, table in self._tables.items():
            if most != besides:
                table.send_off(runner)

    def _parts(self, asked: Sequence[Asked], numbers: Sequence[int]) -> list[list[int]]:
        """Splits texts so that no part has more rows than a call may have."""
        parts, rows, most = list[list[int]](), 0, self._model.shapes.rows[-1]
        for number in numbers:
            own = len(asked[number][1].tokens)
            if not parts or rows + own > most:
                parts.append([])
                rows = 0
            parts[-1].append(number)
            rows += own
        return parts

    def _together(self, table: Table, asked: Sequence[Asked]) -> list[Results]:
        model = self._model
        with self._failures:
            rows_of = table.placed(asked)
        seats = table.reach(rows_of)
        texts = [(rows_of.get(seat, _NO_ROWS), table.length(seat)) for seat in seats]
        total = sum(len(rows.tokens) for rows, _ in texts)
        most = max(len(rows.tokens) for rows, _ in texts)
        bucket = model.shapes.row_bucket
        sizes = FeedSizes(
            bucket(total), table.capacity, bucket(sum(rows.logits for rows, _ in texts)),
            texts=len(texts), text_rows=bucket(most),
        )  # fmt: skip
        feeds = model.feeds_of(sizes)
        feeds.fill_texts(texts)
        begin, hidden, outputs = time.perf_counter(), None, []
        with self._failures:
            for stage, executable in enumerate(model.executables):
                inputs = feeds.stages[stage]
                if hidden is not None:
                    inputs["hidden"][: len(hidden)] = hidden
                outputs.append(executable.run(inputs, table.caches(stage, seats)))
                hidden = outputs[-1].results.get("next_hidden")
        model.seconds += time.perf_counter() - begin
        first = place = 0
        found = dict[int, Results]()
        for number, (rows, _) in enumerate(texts):
            last, behind = first + len(rows.tokens), place + rows.logits
            if seats[number] in rows_of:
                runner = table.runner(seats[number])
                runner.take(rows, outputs, number, first)
                found[id(runner)] = {
                    name: each[first:last] if name in _OF_ALL_ROWS else each[place:behind]
                    for name, each in outputs[-1].results.items()
                }
            first, place = last, behind
        return [found[id(runner)] for runner, _ in asked]


def _most_rows(runner: Runner) -> int:
    """Returns the next power of two, so that texts seldom change tables as they grow."""
    return max(BORDER, 1 << runner.length.bit_length())
