"""What graphs read of texts whose rows all see each other."""

from __future__ import annotations

import numpy as np

from edgespec.bundle import PART, PLACE, SIGHT
from edgespec.runtime.sequences.whole_texts import WholeTextGraph


def read_of(**feeds):
    """Returns what reaches the graph of these inputs."""
    read = {}
    WholeTextGraph(lambda given: read.update(given) or {})(feeds)
    return read


def test_rows_of_a_sequence_are_a_text():
    read = read_of(sequence=np.array([0, 0, 0, 1, 2, 2], np.int32))
    assert read[PLACE].tolist() == [0, 1, 2, 0, 0, 1]
    assert read[SIGHT].tolist() == [2, 1, 0, 0, 1, 0]
    assert read[SIGHT].dtype == np.int32
    assert read[PART].tolist() == [0] * 6


def test_the_parts_of_a_pair_are_those_that_the_call_tells():
    parts = np.array([0, 1, 1])
    assert read_of(sequence=np.zeros(3, np.int32), **{PART: parts})[PART] is parts
