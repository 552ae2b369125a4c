"""Tests of the inputs of calls: positions of rows and what they see."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.bundle.manifest import RopeTable, Stage, Tensor
from edgespec.bundle.sublayers import ATTENTION, Sublayer, Sublayers, bias_input, mask_input
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.shapes import COLUMNS, RECENT, WINDOW, ring_rows, row_bucket

SPLIT = ("lengths",)
ORDERED = (*SPLIT, "window_rows", "recent_rows", "recent_columns")


def inputs_of(theta=1e4, attention_factor=1.0, sight=SPLIT, masks=("causal",), rings=None):
    """The inputs of a model that never runs; `rings` as in `Role`."""
    frequencies = tuple(theta ** (-i / 12) for i in range(12))
    names = (
        "input_ids", "rope_cos", "rope_sin", "rope_cos.local", "rope_sin.local", *sight,
        *map(bias_input, masks), "logit_rows",
        *(mask_input(name, mask) for name in sight[:2] for mask in rings or ()),
    )  # fmt: skip
    inputs = [Tensor(name, "float32", ()) for name in names]
    inputs.append(Tensor("past.0.key", "float32", ("1", "C", "24")))
    stage = Stage("none.onnx", "none.bin", 0, 2, tuple(inputs), ())
    local = RopeTable("local", tuple(2 * each for each in frequencies), 1.0)
    role = SimpleNamespace(
        rope_tables=(RopeTable("default", frequencies, attention_factor), local), head_dim=24,
        bias_off=-1e9, stages=[stage], rings=rings or {},
        layout=Sublayers(Sublayer(0, ATTENTION, mask=mask) for mask in masks),
    )  # fmt: skip
    return Model(role, [], "nowhere"), frequencies


@pytest.mark.parametrize("theta", [1e4, 1e6])
def test_rotations_are_right_at_large_positions(theta):
    model, frequencies = inputs_of(theta)
    drift = 0.0
    for capacity, length in ((256, 0), (256, 200), (6144, 4095), (131_072, 100_000)):
        feeds = model.feeds(4, capacity, 4)
        feeds.fill(Rows([5, 6, 7], [0, 1, 55], np.eye(3, dtype=bool)), length)
        cos, sin = feeds.stages[0]["rope_cos"], feeds.stages[0]["rope_sin"]
        assert cos.dtype == sin.dtype == np.float32
        assert cos.shape == sin.shape == (4, 24)
        for row, position in enumerate((length, length + 1, length + 55)):
            for i, frequency in enumerate(frequencies):
                angle = position * frequency
                for column, sign in ((i, -1), (i + 12, 1)):  # the first half of sin is negated
                    assert abs(cos[row, column] - math.cos(angle)) < 1e-7
                    assert abs(sin[row, column] - sign * math.sin(angle)) < 1e-7
                rounded = float(np.float32(position) * np.float32(frequency))
                drift = max(drift, abs(math.cos(rounded) - math.cos(angle)))
    assert drift > 1e-3  # float32 angles would not have been


def test_rotations_are_scaled_by_the_attention_factor():
    plain, scaled = (inputs_of(1e4, factor)[0].feeds(4, 256, 4) for factor in (1.0, 1.25))
    for feeds in (plain, scaled):
        feeds.fill(Rows.chain([5, 6, 7]), 100)
    for name in ("rope_cos", "rope_sin"):
        one, other = (feeds.stages[0][name] for feeds in (plain, scaled))
        np.testing.assert_allclose(other, 1.25 * one, rtol=1e-6)


def test_rows_of_padding_may_lie_behind_all_positions():
    """They keep the depths of the call before, here of a deep draft level."""
    feeds = inputs_of()[0].feeds(4, 256, 4)
    feeds.fill(Rows([5, 6], [30, 31], np.eye(2, dtype=bool)), 0)
    feeds.fill(Rows.chain([5]), 255)
    assert np.isfinite(feeds.stages[0]["rope_cos"]).all()


@given(st.data())
def test_the_bias_shows_text_mask_and_nothing_else(data):
    model, _ = inputs_of()
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for _ in range(3):  # buffers are used again
        n, length = data.draw(st.integers(1, 8)), data.draw(st.integers(0, 200))
        scratch = data.draw(st.integers(0, 20))
        mask = rng.random((n, scratch + n)) < 0.5
        last_only = data.draw(st.booleans())
        feeds = model.feeds(8, 256, 1 if last_only else 8)
        feeds.fill(Rows([1] * n, [0] * n, mask, last_only=last_only), length)
        seen = np.zeros((8, 256 + 8), bool)
        seen[:n, :length] = True
        seen[:n, length : length + scratch] = mask[:, :scratch]
        seen[:n, 256 : 256 + n] = mask[:, scratch:]
        seen[range(n, 8), range(256 + n, 264)] = True  # else padding would be all masked, so NaN
        np.testing.assert_array_equal(feeds.stages[0]["attention_bias"], np.where(seen, 0, -1e9))
        wanted = [n - 1] if last_only else list(range(8))
        assert feeds.stages[0]["logit_rows"].tolist() == wanted


@st.composite
def family(draw):
    """Rows that each see ancestors among the scratch rows and the rows before it: [n, m]."""
    scratch, n = draw(st.sampled_from([0, 1, 5, 40])), draw(st.integers(1, 24))
    mask = np.eye(scratch + n, dtype=bool)
    for row in range(1, len(mask)):
        # Mostly chains, so that trees are deep.
        parent = draw(st.sampled_from([-1, 0, *[row - 1] * 6]))
        mask[row] |= mask[parent] if parent >= 0 else False
    return mask[scratch:]


@given(family(), st.integers(0, 200), st.booleans())
def test_each_row_has_its_last_positions_in_order_and_older_ones_in_the_cache(mask, length, used):
    n, scratch = len(mask), mask.shape[1] - len(mask)
    feeds = inputs_of(sight=ORDERED)[0].feeds(24, 256, 24, row_bucket(scratch) if scratch else 0)
    if used:
        feeds.fill(Rows.chain([1] * 24), 99)
    feeds.fill(Rows([1] * n, [0] * n, mask), length)
    names = ("attention_bias", *ORDERED[1:])
    bias, window, rows, columns = (feeds.stages[0][name] for name in names)
    # Near rows by name: the cache's by place, then those of the call.
    near = [*window.tolist(), *(("call", row) for row in range(24))]
    for row in range(n):
        ancestors = [
            length + place if place < scratch else ("call", place - scratch)
            for place in np.flatnonzero(mask[row]).tolist()
        ]
        seen = [*range(length), *ancestors]
        recent, older = seen[-RECENT:], seen[:-RECENT]
        shown = np.flatnonzero(bias[row] == 0).tolist()
        assert [column - COLUMNS for column in shown if column >= COLUMNS] == older
        shown = shown[: len(recent)]
        assert shown == list(range(COLUMNS - len(recent), COLUMNS))  # the row itself is the last
        assert [near[rows[row, column]] for column in shown] == recent
        for column in shown:
            assert columns[row, rows[row, column]] == column
        others = set(range(len(near))) - {rows[row, column] for column in shown}
        assert not set(columns[row, list(others)]) & set(shown)


WINDOWS = st.sampled_from([1, 2, 30, 64, 65, 66, 100, 300])


@given(family(), st.integers(0, 1500), WINDOWS, st.booleans())
def test_a_window_hides_all_but_the_last_positions(mask, length, window, ring):
    """In both forms of attention, beside a mask that hides nothing, and with rows in a ring."""
    n, scratch = len(mask), mask.shape[1] - len(mask)
    masks = ("causal", f"window:{window}")
    rings = {masks[1]: window} if ring else {}
    held = ring_rows(window) if ring else 2048
    depths = mask.sum(axis=1) - 1
    shape = 24, 2048, 24, row_bucket(scratch) if scratch else 0
    split = inputs_of(masks=masks, rings=rings)[0].feeds(*shape)
    split.fill(Rows([1] * n, depths, mask), length)
    ordered = inputs_of(sight=ORDERED, masks=masks, rings=rings)[0].feeds(*shape)
    ordered.fill(Rows([1] * n, depths, mask), length)
    for row in range(n):
        own = length + int(depths[row])
        for name, most, rows in zip(masks, (10_000, window), (2048, held), strict=True):
            ancestors = np.flatnonzero(mask[row]).tolist()  # from the first to the row itself
            seen = {length + n: a for n, a in enumerate(ancestors) if len(ancestors) - n <= most}
            old = [p for p in range(length) if own - p < most]
            columns = {p % rows for p in old}
            columns |= {(length + a) % rows for a in seen.values() if a < scratch}
            columns |= {rows + a - scratch for a in seen.values() if a >= scratch}
            bias = split.stages[0][bias_input(name)]
            assert bias.shape == (24, rows + 24)
            assert np.flatnonzero(bias[row] == 0).tolist() == sorted(columns)
            bias = ordered.stages[0][bias_input(name)]
            assert bias.shape == (24, COLUMNS + rows)
            shown = np.flatnonzero(bias[row] == 0).tolist()
            # A recent column's position is told by how far it is from the row's own.
            recent = [own - (COLUMNS - 1 - c) for c in shown if c < COLUMNS]
            assert recent == [p for p in (*old, *seen) if own - p < RECENT]
            cached = {c - COLUMNS for c in shown if c >= COLUMNS}
            assert cached == {p % rows for p in old if own - p >= RECENT}


@given(st.integers(0, 1500), st.integers(0, 40))
def test_the_last_rows_of_a_ring_are_taken_from_where_they_lie(length, scratch):
    rings = {"window:30": 30}
    model = inputs_of(sight=ORDERED, masks=("causal", *rings), rings=rings)[0]
    feeds = model.feeds(4, 2048, 4, row_bucket(scratch) if scratch else 0)
    feeds.fill(Rows([1], [0], np.ones((1, scratch + 1), bool)), length)
    places = [*range(max(length - WINDOW, 0), length + scratch)]
    for name, rows in (("window_rows", 2048), ("window_rows.window_30", ring_rows(30))):
        found = feeds.stages[0][name][: WINDOW + scratch].tolist()
        assert found[WINDOW - min(length, WINDOW) :] == [p % rows for p in places]
        assert max(found) < rows
    assert feeds.stages[0]["lengths.window_30"].tolist() == [COLUMNS, ring_rows(30)]


def test_each_rotation_table_has_its_own_inputs():
    model, frequencies = inputs_of()
    feeds = model.feeds(1, 256, 1)
    feeds.fill(Rows.chain([5]), 100)
    for name, factor in (("rope_cos", 1), ("rope_cos.local", 2)):
        expected = [math.cos(100 * factor * each) for each in frequencies]
        np.testing.assert_allclose(feeds.stages[0][name][0, :12], expected, atol=1e-6)


def test_rows_of_padding_see_something():
    """Fully masked rows would have NaN scores."""
    feeds = inputs_of(sight=ORDERED)[0].feeds(8, 256, 8)
    for length in (0, 200):
        feeds.fill(Rows.chain([5]), length)
        assert (feeds.stages[0]["attention_bias"] == 0).any(axis=1).all()


def test_more_tokens_in_a_row_than_have_columns_are_refused():
    feeds = inputs_of(sight=ORDERED)[0].feeds(80, 256, 80)
    feeds.fill(Rows.chain([5] * RECENT), 0)
    with pytest.raises(ValueError, match=f"{RECENT + 1} consecutive tokens: {RECENT} at most"):
        feeds.fill(Rows.chain([5] * (RECENT + 1)), 0)
