"""Passes of a model that several texts share: weights are read once for all of them.

The products of a pass are over the rows of all texts at once, which costs little more than over
those of one; each text attends to its own cache. So that a call can read them, the caches of such
texts lie side by side, in *seats*; a text takes one with its first shared pass and keeps it.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import cast

import numpy as np

from edgespec.bundle import FEATURES
from edgespec.runtime.engines import Cache, Seating, Seats
from edgespec.runtime.execution.failures import NamedFailures
from edgespec.runtime.execution.feeds import FeedSizes, Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Results, Runner
from edgespec.runtime.execution.sharing import parts, reading
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
        self._tables = dict[int, _Table]()  # by the most rows of their texts, see `_most_rows`
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
                seats = self._tables.setdefault(most, _Table(self._model, self._playing))
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

    def _together(self, table: _Table, asked: Sequence[Asked]) -> list[Results]:
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


class _Table:
    """Seats of the texts that share passes, one after the other.

    Args:
        model: the model.
        playing: those whose text goes on; others give way.
    """

    def __init__(self, model: Model, playing: Container[Runner]) -> None:
        self._model, self._playing = model, playing
        self._stages: list[Seats] = []
        self._seated: list[weakref.ref[Runner] | None] = []

    @property
    def capacity(self) -> int:
        """Rows of the cache of each text; 0 before the first text."""
        return self._stages[0].capacity if self._stages else 0

    def clear(self) -> None:
        """Gives all texts caches of their own."""
        for seat in range(len(self._seated)):
            runner = self._at(seat)
            if runner is not None:
                runner.stand()

    def tidy(self) -> None:
        """Gives memory back if all texts have gone, as behind the border."""
        if not any(map(self._at, range(len(self._seated)))):
            self._stages, self._seated = [], []

    def send_off(self, runner: Runner) -> None:
        """Gives a text caches of its own, if it sits here."""
        if self._seat_of(runner) is not None:
            runner.stand()

    def placed(self, asked: Sequence[Asked]) -> dict[int, Rows]:
        """Gives every text a seat, as far in front as possible; returns their rows by seat."""
        for runner, _ in asked:
            if self._seat_of(runner) is None:
                self._move(runner, self._free_seat())
        # A seat in front that nobody needs costs as much as one that is needed.
        while True:
            last, mover = self._last([each for each, _ in asked])
            seat = self._vacant()
            if seat is None or seat > last:
                break
            self._move(mover, seat)
        self._make_room(max(runner.length + runner.scratch for runner, _ in asked))
        by_runner = {id(runner): rows for runner, rows in asked}
        seated = ((seat, self._at(seat)) for seat in range(len(self._seated)))
        return {
            seat: by_runner[id(each)]
            for seat, each in seated
            if each is not None and id(each) in by_runner
        }

    def reach(self, rows_of: Mapping[int, Rows]) -> range:
        """Returns the consecutive seats of a call over texts in these seats."""
        first = 0 if self._model.seats_on_device else min(rows_of)
        return range(first, max(rows_of) + 1)

    def length(self, seat: int) -> int:
        """Returns the length of the text in a seat; 0 if there is none."""
        runner = self._at(seat)
        return 0 if runner is None else runner.length

    def runner(self, seat: int) -> Runner:
        """Returns the text in a seat that is taken."""
        runner = self._at(seat)
        assert runner is not None, "a text of the pass keeps its seat"
        return runner

    def caches(self, stage: int, seats: range) -> Cache:
        """Returns the caches of a stage's texts in these seats."""
        return self._stages[stage].among(seats)

    def _at(self, seat: int) -> Runner | None:
        reference = self._seated[seat]
        runner = None if reference is None else reference()
        # It has other caches if it began anew, or went on behind the border.
        return runner if runner and runner.holds(self._stages[0].seat(seat)) else None

    def _seat_of(self, runner: Runner) -> int | None:
        return next((n for n in range(len(self._seated)) if self._at(n) is runner), None)

    def _last(self, runners: Sequence[Runner]) -> tuple[int, Runner]:
        """Returns the last seat that one of these texts has, and the text."""
        seats = [(self._seat_of(each), each) for each in runners]
        known = [(seat, each) for seat, each in seats if seat is not None]
        return max(known, key=lambda each: each[0])

    def _free_seat(self) -> int:
        """Returns the first seat that nobody needs; makes more if there is none."""
        seat = self._vacant()
        if seat is None:
            seat = len(self._seated)
            self._add_seats()
        return seat

    def _vacant(self) -> int | None:
        """Returns the first seat that nobody needs, after sending off who sat there; or None."""
        for seat in range(len(self._seated)):
            runner = self._at(seat)
            if runner is not None and runner not in self._playing:
                runner.stand()
                runner = None
            if runner is None:
                self._seated[seat] = None
                return seat
        return None

    def _move(self, runner: Runner, seat: int) -> None:
        old = self._seat_of(runner)
        self._make_room(runner.length + runner.scratch)
        runner.sit([stage.seat(seat) for stage in self._stages])
        if old is not None:
            self._seated[old] = None
        self._seated[seat] = weakref.ref(runner)

    def _make_room(self, length: int) -> None:
        """Grows all caches to what a text of this length needs for a further row."""
        wanted = self._model.shapes.capacity_bucket(length + 1)
        for stage in self._stages:
            if stage.capacity < wanted:
                try:
                    stage.grow(wanted)
                except Exception:  # of any engine; some lose their caches then
                    self._stages, self._seated = [], []
                    raise

    def _add_seats(self) -> None:
        """Doubles the number of seats; on a device there are at once as many as were planned."""
        seated = [self._at(seat) for seat in range(len(self._seated))]
        count = max(2, 2 * len(seated))
        capacity = self.capacity or self._model.shapes.capacity_bucket(1)
        executables = [cast(Seating, each) for each in self._model.executables]
        if (
            self._model.seats_on_device
        ):  # old and new seats at once may be more than was planned for
            count = max(count, 1 << (self._model.sizes.texts - 1).bit_length())
        self._stages = [each.new_seats(count, capacity) for each in executables]
        for seat, runner in enumerate(seated):
            if runner is not None:
                runner.sit([stage.seat(seat) for stage in self._stages])
        self._seated += [None] * (count - len(seated))


def _most_rows(runner: Runner) -> int:
    """Returns the next power of two, so that texts seldom change tables as they grow."""
    return max(BORDER, 1 << runner.length.bit_length())
