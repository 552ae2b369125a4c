"""Runners of small pairs' targets, in the shapes in which rows are exact."""

from __future__ import annotations

from functools import cache

from pairs import ENGINES

from edgespec.bundle import TARGET
from edgespec.runtime.engines import engine as engine_of
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.runner import Runner


class Runners:
    """Makes runners with empty caches; a model is loaded once for each engine."""

    def __init__(self, pairs):
        self._pairs = pairs
        self._model = cache(self._load)

    def __call__(self, name, engine=ENGINES[0]):
        return Runner(self._model(name, engine))

    def _load(self, name, engine):
        bundle = self._pairs.llm(name, engine, "none").bundle
        engines = (engine_of(engine),) * len(bundle.target.stages)
        return exactness.load(bundle, TARGET, engines, 1)


def following(runner, token=3):
    """Returns the logits of a row behind the committed text, without keeping it."""
    return runner.verify(Rows.chain([token]))["logits"][0].copy()
