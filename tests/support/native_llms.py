"""Loaded bundles of small random pairs with native graphs."""

from __future__ import annotations

import pytest
from toys import Given

from edgespec import LLM
from edgespec.llm.llm import inside
from edgespec.runtime.kernels import library

with_library = pytest.mark.skipif(library() is None, reason="the operators are not built")


def loaded(pairs, name, draft="auto", **options):
    """A model of the test's own."""
    return LLM(pairs.pair(name).path, draft=draft, **{"threads": 1, "context": 512, **options})


def cheapen(llm):
    """Gives costs by which further rows and calls of drafts pay, whatever they cost here."""
    inside(llm).engine.measure()  # or it would be found out later
    for drafter in inside(llm).engine.drafters:
        if hasattr(drafter, "model"):
            drafter.model.cost = Given(0.02, 0.01)
            drafter.model.queued_cost = None
    inside(llm).engine.target.cost = Given(1.0, 0.01)
    return llm
