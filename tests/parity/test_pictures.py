"""Rows of pictures in sequences: by what they are shared, and where passes and cuts may end."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3VLModel

from edgespec.runtime.sequences.pictures import Pictures, in_grids


@st.composite
def pictures(draw, alone=False):
    """A sequence's pictures, with at least one token of text before and behind each."""
    parts = st.tuples(st.integers(1, 9), st.integers(1, 7))
    places = []
    counts = []
    at = 0
    for gap, count in draw(st.lists(parts, min_size=1, max_size=5)):
        places += range(at + gap, at + gap + count)
        counts.append(count)
        at += gap + count
    rows = np.random.default_rng(draw(st.integers(0, 9))).standard_normal((len(places), 3))
    return Pictures(np.array(places), rows.astype(np.float32), () if alone else tuple(counts))


def spans(shown):
    ends = np.cumsum(shown.together)
    firsts = shown.places[ends - shown.together]
    return [*zip(firsts.tolist(), (firsts + shown.together).tolist(), strict=True)]


@given(pictures(), st.integers(0, 80))
def test_what_is_begun_ends_within_no_picture(shown, length):
    start = next((start for start, stop in spans(shown) if start < length < stop), length)
    assert shown.begun(length) == start


@given(pictures(), st.integers(0, 40), st.integers(1, 30))
def test_passes_end_within_no_picture(shown, length, count):
    length = shown.begun(length)
    made = shown.following(length, count)
    assert shown.begun(length + made) == length + made
    assert 0 < made <= max(count, *shown.together)
    if shown.begun(length + count) == length + count:
        assert made == count


@given(pictures(alone=True), st.integers(0, 80), st.integers(1, 30))
def test_rows_that_see_those_before_them_are_read_as_they_come(shown, length, count):
    assert shown.begun(length) == length
    assert shown.following(length, count) == count


@given(pictures())
def test_a_row_sees_the_last_one_of_its_picture(shown):
    rows = np.arange(len(shown.places))
    last = {place: stop - 1 for start, stop in spans(shown) for place in range(start, stop)}
    seen = shown.places + shown.sight(rows)
    assert seen.tolist() == [last[place] for place in shown.places.tolist()]
    assert not Pictures(shown.places, shown.rows).sight(rows).any()


ROWS = 5


def test_keys_are_those_of_what_is_shown():
    rows = np.random.default_rng(0).standard_normal((2 * ROWS, 3)).astype(np.float32)
    rows[ROWS : 2 * ROWS - 1] = rows[: ROWS - 1]  # the second picture ends otherwise
    places = np.arange(1, 2 * ROWS + 1)
    tokens = [7] * (2 * ROWS + 2)
    alone, together = (Pictures(places, rows, n).keyed(tokens) for n in ((), (ROWS, ROWS)))
    for keyed in (alone, together):
        assert keyed[0] == keyed[-1] == 7
        assert all(each < 0 for each in keyed[1:-1])
        assert len(set(keyed[1 : ROWS + 1])) == ROWS
    assert alone[1:ROWS] == alone[ROWS + 1 : 2 * ROWS]
    assert not set(together[1 : ROWS + 1]) & set(together[ROWS + 1 : -1])
    assert Pictures(places, rows).keyed(tokens[:3]) == alone[:3]


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5
    )
)
def test_positions_in_grids_are_those_of_transformers(pictures):
    """Each with so many tokens of text before it, lines and columns."""
    kinds = []
    grids = [(lines, columns) for _, lines, columns in pictures]
    for text, lines, columns in pictures:
        kinds += [0] * text + [1] * lines * columns
    kinds = torch.tensor([[*kinds, 0, 0, 0]])
    patches = torch.tensor([(1, 2 * lines, 2 * columns) for lines, columns in grids])
    config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2))
    placed = partial(Qwen3VLModel.get_vision_position_ids, None)
    model = SimpleNamespace(config=config, get_vision_position_ids=placed)
    expected, _ = Qwen3VLModel.get_rope_index(model, kinds, kinds, patches)
    places = np.flatnonzero(kinds[0].numpy())
    shown = Pictures(places, np.zeros((len(places), 3), np.float32), (), in_grids(grids))
    found = shown.turned(np.arange(kinds.shape[1]))
    np.testing.assert_array_equal(found.T, expected[:, 0].numpy())


def test_rows_of_other_positions_are_not_shared():
    """A picture of one colour has the same rows in whatever lines and columns they are."""
    places = np.arange(4)
    rows = np.zeros((4, 3), np.float32)
    tall, wide = (Pictures(places, rows, (), in_grids([grid])) for grid in ((4, 1), (1, 4)))
    assert tall.keyed([7] * 4) == tall.keyed([7] * 4)
    assert tall.keyed([7] * 4)[1] != wide.keyed([7] * 4)[1]
