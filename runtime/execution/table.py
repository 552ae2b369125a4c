"""Where the caches of texts that share passes lie: side by side, so that one call can read them."""

from __future__ import annotations

import weakref
from collections.abc import Container, Mapping, Sequence
from typing import cast

from edgespec.runtime.engines import Cache, Seating, Seats
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner


class Table:
    """Seats, of which a text takes one with its first shared pass and keeps it.

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

    def placed(self, asked: Sequence[tuple[Runner, Rows]]) -> dict[int, Rows]:
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
        if self._model.seats_on_device:  # old and new at once may be more than was planned for
            count = max(count, 1 << (self._model.sizes.texts - 1).bit_length())
        self._stages = [each.new_seats(count, capacity) for each in executables]
        for seat, runner in enumerate(seated):
            if runner is not None:
                runner.sit([stage.seat(seat) for stage in self._stages])
        self._seated += [None] * (count - len(seated))
