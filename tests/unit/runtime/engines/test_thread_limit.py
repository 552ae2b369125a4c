"""Passes leave processors to other programs that are busy, and texts stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from nodes import Node, needs_library

from edgespec.runtime.engines.native import ThreadLimit
from edgespec.runtime.kernels import use_threads


class Machine:
    """Eight processors, on which this program and others are busy for so many of each second."""

    def __init__(self):
        self.now = self.own = self.others = 0.0
        self.told = []
        self.limit = ThreadLimit(self.told.append, lambda: self.now, self.taken, processors=8)
        self.limit.adapt()

    def taken(self):
        return self.own + self.others, self.own

    def passes(self, seconds, own, others):
        self.now += seconds
        self.own += seconds * own
        self.others += seconds * others
        self.limit.adapt()
        return self.told


@pytest.mark.parametrize(("others", "threads"), [(0.9, 7), (1.0, 7), (2.6, 5), (7.8, 1), (9.0, 1)])
def test_threads_are_as_many_as_processors_that_others_leave(others, threads):
    assert Machine().passes(0.5, own=8 - others, others=others) == [threads]


def test_what_is_hardly_busy_changes_nothing():
    machine = Machine()
    for _ in range(4):
        machine.passes(0.5, own=7.5, others=0.4)
    assert machine.told == []


def test_all_threads_come_back_when_others_are_done():
    machine = Machine()
    machine.passes(0.5, own=6, others=2)
    assert machine.passes(0.5, own=6, others=0) == [6, 8]


def test_others_that_take_what_is_left_to_them_are_not_left_more():
    machine = Machine()
    machine.passes(0.5, own=4, others=4)
    assert machine.passes(0.5, own=4, others=4) == [4]
    machine.passes(0.5, own=2.5, others=5.5)
    assert machine.told == [4]


def test_all_threads_compete_again_from_time_to_time():
    machine = Machine()
    for _ in range(11):
        machine.passes(0.5, own=7, others=1)
    assert machine.told == [7, 8, 7]


def test_looks_are_rare_and_a_pause_tells_nothing():
    machine = Machine()
    assert machine.passes(0.1, own=4, others=4) == []
    assert machine.passes(5.0, own=0, others=8) == []
    assert machine.passes(0.5, own=4, others=4) == [4]


def test_a_clock_that_begins_anew_in_a_forked_process_is_no_harm():
    machine = Machine()
    machine.passes(0.5, own=8, others=0)
    machine.own = 0.0
    assert machine.passes(0.5, own=8, others=0) == []


@needs_library
@pytest.mark.parametrize("operator", ["Softmax", "Moments"])
def test_a_limit_changes_no_bit(operator):
    x = np.random.default_rng(1).normal(size=(512, 640)).astype(np.float32)
    node = Node(operator, ["x"], {"x": x}, threads=4)
    expected = node({"x": x})
    try:
        for most in (1, 2, 3, 9):
            use_threads(most)
            np.testing.assert_array_equal(node({"x": x}), expected)
    finally:
        use_threads(2**31)
