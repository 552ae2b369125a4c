from __future__ import annotations

import numpy as np
import pytest
from toys import ToyGraph, toy_model, toy_shape

from edgespec.bundle import RopeTable
from edgespec.errors import DeviceError
from edgespec.runtime.sequences.model import AFTER, Model, RotationTable, Rows
from edgespec.runtime.sequences.pool import KVPool


class Recorder:
    """A graph that keeps its inputs."""

    def __call__(self, feeds):
        self.feeds = feeds
        return {"logits": np.zeros((len(feeds["logit_rows"]), 4), np.float32)}


@pytest.fixture
def recorded():
    graph = Recorder()
    ropes = [
        RotationTable(RopeTable("local", (1.0, 0.5, 0.0), 2.0)),
        RotationTable(RopeTable("default", (1.0,), 1.0)),
    ]
    return graph, Model(graph, KVPool([toy_shape()], "fp32"), ropes)


def chain(sequence, tokens, wanted=()):
    return Rows(sequence, tokens, [AFTER, *range(len(tokens) - 1)], list(wanted))


def test_inputs_of_two_sequences_with_trees(recorded):
    graph, model = recorded
    one = model.sequence([1, 2, 3])
    two = model.sequence([4])
    first = chain(one, [1, 2, 3])
    model.forward([first])
    first.accept(range(3))
    tree = Rows(one, [5, 6, 7], [AFTER, 0, 0], [0, 2])
    other = chain(two, [4, 8], [1])
    parts = model.forward([tree, other])
    feeds = graph.feeds
    assert feeds["input_ids"].tolist() == [5, 6, 7, 4, 8]
    assert feeds["parent"].tolist() == [-1, 0, 0, -1, 3]
    assert feeds["sequence"].tolist() == [0, 0, 0, 1, 1]
    assert feeds["context"].tolist() == one.slots.tolist() == [0, 1, 2]
    assert feeds["starts"].tolist() == [0, 3, 3]
    assert feeds["logit_rows"].tolist() == [0, 2, 4]
    assert feeds["write"].tolist() == [*tree.slots, *other.slots] == [3, 4, 5, 6, 7]
    assert [len(part) for part in parts] == [2, 1]
    angles = np.array([3, 4, 4, 0, 1])[:, None] * [1.0, 0.5, 0.0]
    scale = np.array([2, 2, 1])
    np.testing.assert_allclose(feeds["rope_cos.local"], scale * np.cos(angles), rtol=1e-6)
    np.testing.assert_allclose(
        feeds["rope_sin.local"], scale * np.sin(angles), rtol=1e-6, atol=1e-7
    )
    assert feeds["rope_cos"].shape == feeds["rope_sin"].shape == (5, 1)
    kinds = {name: array.dtype.name for name, array in feeds.items()}
    assert kinds["input_ids"] == kinds["logit_rows"] == "int64"
    slots = ("write", "parent", "sequence", "context", "starts")
    assert {kinds[name] for name in slots} == {"int32"}


def test_accepting_a_path_frees_the_other_rows(recorded):
    _, model = recorded
    sequence = model.sequence([5, 7])
    tree = Rows(sequence, [5, 6, 7], [AFTER, 0, 0], [0])
    model.forward([tree])
    first, other, last = tree.slots
    tree.accept([0, 2])
    assert sequence.slots.tolist() == [first, last]
    assert model.pool.references(other) == 0
    assert model.pool.used == 2


def test_rows_behind_a_branch_follow_its_slots(recorded):
    graph, model = recorded
    sequence = model.sequence([1])
    root = chain(sequence, [1])
    model.forward([root])
    root.accept([0])
    node = chain(sequence, [2])
    model.forward([node])
    model.forward([Rows(sequence, [3, 4], [AFTER, AFTER], [0], branch=node.slots)])
    assert graph.feeds["context"].tolist() == [sequence.slots[0], node.slots[0]]
    assert graph.feeds["starts"].tolist() == [0, 2]
    np.testing.assert_array_equal(
        graph.feeds["rope_cos.local"][0], graph.feeds["rope_cos.local"][1]
    )


def test_a_failed_pass_frees_its_slots():
    def graph(_):
        raise DeviceError("no")

    model = Model(graph, KVPool([toy_shape()], "fp32"), [])
    with pytest.raises(DeviceError):
        model.forward([chain(model.sequence([1]), [1])])
    assert model.pool.used == 0


def test_rotations_of_a_position_are_always_the_same_bits():
    table = RopeTable("default", (1.0, 0.3), 1.0)
    early = RotationTable(table)
    late = RotationTable(table)
    late.at(np.array([5000]), 5000)
    for one, other in zip(early.at([7, 900], 900), late.at([7, 900], 900), strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_in_chunks_and_trees_equal_rows_alone():
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    whole = toy_model()
    expected = whole.forward([chain(whole.sequence(tokens), tokens, range(8))])[0]
    model = toy_model()
    sequence = model.sequence(tokens)
    other = model.sequence(tokens)
    rows = chain(sequence, tokens[:3], range(3))
    np.testing.assert_array_equal(model.forward([rows])[0], expected[:3])
    rows.accept(range(3))
    tree = Rows(sequence, [1, 7, 5, 8, 9], [AFTER, 0, 0, 1, 2], [0, 2, 4])
    found, beside = model.forward([tree, chain(other, tokens[:2], range(2))])
    np.testing.assert_array_equal(found, expected[[3, 4, 5]])
    np.testing.assert_array_equal(beside, expected[:2])
    assert isinstance(model.graph, ToyGraph)
