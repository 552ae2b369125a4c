"""What a stage reads of recurrent layers: always that of the text, whatever happened to it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.bundle.sublayers import CHUNK, RecurrentShape
from edgespec.runtime.engines.recurrence import Recurrence, recurrent_bytes

HEADS, KEY_HEADS, KEY, VALUE, CHANNELS, KERNEL = 4, 2, 3, 5, 7, 4
DELTA = RecurrentShape(
    CHANNELS + KEY_HEADS * KEY + 2 * HEADS * VALUE + 2 * HEADS,
    KERNEL,
    (HEADS, KEY_HEADS, KEY, VALUE),
)
LAYERS = {0: RecurrentShape(CHANNELS, KERNEL), 2: DELTA}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "cut", "move"]), st.integers(0, 40))))
def test_inputs_are_those_of_the_text(steps):
    rng, held = np.random.default_rng(0), Recurrence(LAYERS)
    texts = [np.zeros((0, shape.width), np.float32) for shape in LAYERS.values()]
    for step, size in steps:
        length = len(texts[0])
        if step == "add":  # rows of a call in any order, none of them behind a border
            count = min(max(size, 1), CHUNK - length % CHUNK)
            new = [rng.standard_normal((count + 3, text.shape[1])).astype("f4") for text in texts]
            rows = rng.permutation(count + 3)[:count]
            held.write(new, rows.tolist(), length)
            texts = [
                np.concatenate([text, each[rows]]) for text, each in zip(texts, new, strict=True)
            ]
            held.settle(length + count)
        elif step == "cut":
            kept = length - size if length - size >= held.earliest else 0
            held.cut(kept)
            texts = [text[:kept] for text in texts]
        elif length:
            other = Recurrence(LAYERS)
            copied = held.copy(length)
            assert other.fits(copied)
            other.load(copied, length)
            held = other
        check(held, texts)


def check(held, texts):
    length = len(texts[0])
    border = length // CHUNK * CHUNK
    assert held.border == border
    for layer, text in zip(LAYERS, texts, strict=True):
        padded = np.concatenate([np.zeros((KERNEL - 1, text.shape[1]), np.float32), text])
        expected = padded[length:, :CHANNELS]
        np.testing.assert_array_equal(held.views[f"past.{layer}.rows"], expected)
    behind, n = texts[1][border:], length - border
    ends = np.cumsum(DELTA.parts)[:-1]
    _, keys, errors, added, rates, decays = np.split(behind, ends, axis=1)
    for name, rows, heads in (("keys", keys, KEY_HEADS), ("errors", errors, HEADS),
                              ("added", added, HEADS)):  # fmt: skip
        for head, part in enumerate(np.split(rows, heads, axis=1)):
            np.testing.assert_array_equal(held.views[f"past.2.{name}"][head, :n], part)
    for name, rows in (("rates", rates), ("decays", decays)):
        np.testing.assert_array_equal(held.views[f"past.2.{name}"][:n], rows)


def test_bytes_are_those_of_all_arrays():
    held = Recurrence(LAYERS)
    kept = sum(each.nbytes for each in held.copy(1).values())  # and once more of a border before
    read = sum(each.nbytes for name, each in held.views.items() if not name.endswith("state"))
    assert recurrent_bytes(list(LAYERS.values())) == held.nbytes == 2 * kept + read
