"""Loaded bundles of small random pairs with native graphs."""

from __future__ import annotations

import pytest

from edgespec import LLM
from edgespec.runtime.kernels import library

with_library = pytest.mark.skipif(library() is None, reason="the operators are not built")


def loaded(pairs, name, draft="auto", **options):
    """A model of the test's own."""
    return LLM(pairs.pair(name).path, draft=draft, **{"threads": 1, "context": 512, **options})
