"""What a text waits for while it is made, so that texts can be made together.

What waits is a generator: it yields the calls that it needs and is answered by their results, and
what its tree promises and is told how many rows of the pass it gets. Who runs a single text answers
each at once (`finished`); who runs several can put calls together.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.runner import Results, Runner
from edgespec.runtime.trees.company import PassCost
from edgespec.runtime.trees.offers import Granted, Offer


@dataclass(frozen=True)
class Call:
    """Rows to run, as by `Runner.verify`.

    Attributes:
        runner: the text in the model.
        rows: the rows.
    """

    runner: Runner
    rows: Rows

    def alone(self) -> Called:
        """Makes the call for this text alone."""
        results: Results = {}
        begin, error = time.perf_counter(), None
        try:
            results = self.runner.verify(self.rows)
        except Exception as failure:
            error = failure
        cost = PassCost(1, len(self.rows.tokens), time.perf_counter() - begin)
        return Called(cost, results, error)


@dataclass(frozen=True)
class Called:
    """The answer to a `Call`.

    Attributes:
        cost: what the call took for all texts that shared it.
        results: the graph's results, valid until the next step.
        error: why there are none.
    """

    cost: PassCost
    results: Results = field(default_factory=dict)
    error: Exception | None = None


class Chunk:
    """Comes before a call that no other text can share and that takes long.

    The step behind it makes the call. Other texts may be given what they wait for before.
    """


CHUNK = Chunk()

T = TypeVar("T")

Steps: TypeAlias = Generator[Call | Chunk | Offer, Called | Granted | None, T]
"""Something that makes calls, or shares rows, on its way to a result."""


def call(runner: Runner, rows: Rows) -> Steps[Results]:
    """Waits for a call; see `Runner.verify`.

    Raises:
        DeviceError: if the engine failed.
    """
    called = yield Call(runner, rows)
    assert isinstance(called, Called), "a call is answered by its results"
    if called.error is not None:
        raise called.error
    return called.results


def finished(steps: Steps[T]) -> T:
    """Returns the result of steps, whose calls are made one by one."""
    answer: Called | Granted | None = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = None if isinstance(step, Chunk) else step.alone()
