"""Graphs of strangers: what fits nothing is an error, and never a crash."""

import os

import hostile
import pytest
from nodes import KERNELS, by_kernel, needs_library

pytestmark = needs_library
GRAPHS = os.environ.get("EDGESPEC_TEST_GRAPHS", "1000")


@pytest.mark.parametrize("kernel", KERNELS)
def test_hostile_graphs_are_errors(kernel):
    found = by_kernel(kernel, "hostile", "computed", "3", GRAPHS)
    for maker in hostile.MAKERS:
        ran, refused = found[maker.__name__]
        assert ran > 0
        assert refused > 0
