"""Draft vocabularies, and the likeliest tokens of logits."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.training.reader import likeliest
from edgespec.training.vocabulary import DraftIds, choose, expected_uses, offsets


def test_offsets_lead_from_a_drafts_ids_to_the_targets():
    ids = np.array([1, 2, 7, 30])
    shifts, proposed = offsets(ids, 40)
    assert shifts.dtype == np.int64
    assert [number + int(shift) for number, shift in enumerate(shifts)] == ids.tolist()
    assert proposed.dtype == np.bool_
    assert np.flatnonzero(proposed).tolist() == ids.tolist()
    assert len(proposed) == 40


def test_the_most_used_tokens_are_chosen_and_those_that_end_a_text():
    expected = np.zeros(20)
    expected[11] = 0.4
    assert choose([9, 9, 9, 5], expected, 4, [19]).tolist() == [5, 9, 11, 19]
    assert choose([9], np.zeros(20), 3, []).tolist() == [0, 1, 9]
    assert choose([9], np.zeros(4), 30, []).tolist() == [0, 1, 2, 3]


def test_expected_uses_add_up_to_one():
    ids = np.array([[3, 1], [3, 2]])
    uses = expected_uses(ids, np.log(np.array([[3, 1], [1, 1]], np.float32)), 5)
    assert uses == pytest.approx([0, 0.125, 0.25, 0.625, 0])


def test_labels_are_numbers_in_the_draft_vocabulary():
    draft = DraftIds(np.array([2, 5, 8]), 10)
    logits = np.log(np.array([[4, 2, 1], [1, 1, 1]], np.float32))
    numbers, shares = draft.labels(np.array([[8, 3, 2], [0, 1, 3]]), logits)
    assert numbers[0, [0, 2]].tolist() == [2, 0]
    assert shares[0] == pytest.approx([0.8, 0, 0.2])
    assert shares[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("width", [5, 64, 300, 9001])
def test_likeliest_tokens_are_those_of_a_sort(width):
    random = np.random.default_rng(width)
    logits = random.normal(size=(7, width)).astype(np.float32)
    count = min(6, width)
    ids, top = likeliest(logits, count)
    assert ids.tolist() == np.argsort(-logits, axis=1)[:, :count].tolist()
    assert top.tolist() == np.take_along_axis(logits, ids, axis=1).tolist()
