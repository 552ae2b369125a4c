"""Loaded bundles of small random pairs with native graphs."""

from __future__ import annotations

import pytest

from edgespec import bundle as bundles
from edgespec.api.engine import NativeLLM
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.kernels import library

with_library = pytest.mark.skipif(library() is None, reason="the operators are not built")


def loaded(pairs, name, draft="auto", **options):
    """A model of the test's own."""
    asked = LoadOptions(draft=draft, **{"threads": 1, "context": 512, **options})
    return NativeLLM(bundles.load(pairs.pair(name).path), asked)
