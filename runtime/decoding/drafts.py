"""The drafts of the texts of a round, which grow together: a level of all in one call of the draft.

A text leaves when its own tree ends. What it waits for next is then its pass.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from edgespec.runtime.execution.joint import JointPasses
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.steps import Call, Called, Chunk
from edgespec.runtime.trees.company import PassCost


class Drafting(Protocol):
    """A text whose draft may wait for a call."""

    @property
    def asked(self) -> object:
        """What it waits for."""

    def called(self, answer: Called | None, seconds: float) -> None:
        """Takes the step behind a call of this duration, or behind a `Chunk`."""


class SharedDrafts:
    """Makes the calls that the drafts of texts wait for, together where the model allows it."""

    def __init__(self) -> None:
        self._passes: dict[Model, JointPasses] = {}  # of models that texts have called together

    def make(self, texts: Sequence[Drafting]) -> None:
        """Makes calls until no text waits for one.

        At most one reads a chunk first, the first that wants to. Others that do wait for the next
        round, so that a long text holds up those that decode for one chunk at most.
        """
        for text in texts:
            if isinstance(text.asked, Chunk):
                text.called(None, 0.0)
                break
        if len(texts) == 1 and isinstance(texts[0].asked, Call):
            self._stand(texts[0].asked.runner)
        while calls := [(text, text.asked) for text in texts if isinstance(text.asked, Call)]:
            if len(calls) > 1:
                self._share(calls)
                continue
            [(text, call)] = calls
            answer = call.alone()
            text.called(answer, answer.cost.seconds)

    def leave(self, runner: Runner) -> None:
        """A text is over, see `JointPasses.leave`."""
        if runner.model in self._passes:
            self._passes[runner.model].leave(runner)

    def _stand(self, runner: Runner) -> None:
        """Gives a text that drafts alone caches that are no larger than it needs."""
        if runner.model in self._passes:
            self._passes[runner.model].stand(runner)

    def _share(self, calls: Sequence[tuple[Drafting, Call]]) -> None:
        """Makes calls of several texts."""
        by_model = dict[Model, list[tuple[Drafting, Call]]]()
        for text, call in calls:
            by_model.setdefault(call.runner.model, []).append((text, call))
        for model, asking in by_model.items():
            if model not in self._passes:
                self._passes[model] = JointPasses(model)
            waiting = dict(enumerate(asking))
            begin = time.perf_counter()
            try:
                asked = [(call.runner, call.rows) for _, call in asking]
                for cost, made in self._passes[model].timed(asked):
                    for number, results in made:
                        text, _ = waiting.pop(number)
                        text.called(Called(cost, results), cost.seconds)
                    begin = time.perf_counter()
            except Exception as error:
                seconds = time.perf_counter() - begin
                for text, call in waiting.values():
                    cost = PassCost(len(waiting), len(call.rows.tokens), seconds)
                    text.called(Called(cost, error=error), seconds)
