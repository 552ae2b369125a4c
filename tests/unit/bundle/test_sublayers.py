"""How people write sublayers, and which numbers they have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.bundle.sublayers import (
    ATTENTION,
    MLP,
    Sublayer,
    Sublayers,
    behind_of,
    in_chunks,
    parse,
    window_of,
)
from edgespec.errors import InputError

PAIRS = Sublayers(Sublayer(layer, kind) for layer in range(21) for kind in (ATTENTION, MLP))
# A layer without an attention, and one with two MLPs.
MIXED = Sublayers(
    Sublayer(layer, kind)
    for layer, kinds in enumerate([(ATTENTION, MLP), (MLP,), (ATTENTION, MLP, MLP), (ATTENTION,)])
    for kind in kinds
)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", (0, 1)),
        ("3a", (6,)),
        ("3m", (7,)),
        ("3m, 3a", (6, 7)),
        ("2-4", (4, 5, 6, 7, 8, 9)),
        ("5,1m,2-2,1m", (3, 4, 5, 10, 11)),
        ("10a", (20,)),
    ],
)
def test_what_is_read(text, numbers):
    assert PAIRS.named(parse(text)) == numbers


@pytest.mark.parametrize("text", ["", "x", "3,", "-1", "3b", "3a-4", "1-2-3", "3 to 4"])
def test_what_is_refused(text):
    with pytest.raises(InputError, match="does not name sublayers: write 3 for layer 3"):
        parse(text)


@pytest.mark.parametrize("text", ["1-999999999", "12345m", "1" * 5000])
def test_layers_that_no_model_has(text):
    with pytest.raises(InputError, match=f"'{text}': no model has so many layers"):
        parse(text)


def test_a_range_the_wrong_way_round():
    with pytest.raises(InputError, match="'4-2' does not name sublayers"):
        parse("4-2")


@pytest.mark.parametrize(
    ("layout", "text", "missing"),
    [(PAIRS, "20-21", "21"), (PAIRS, "30m", "30m"), (MIXED, "1a", "1a"), (MIXED, "3m", "3m")],
)
def test_what_a_model_does_not_have(layout, text, missing):
    last = layout.layers - 1
    with pytest.raises(InputError, match=f"no {missing}: the model has layers 0 to {last}"):
        layout.named(parse(text))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((6,), "3a"),
        ((7, 6), "3"),
        ((4, 5, 6, 7), "2-3"),
        ((3, 4, 5, 6, 7, 9), "1m,2-3,4m"),
        ((4, 5, 8, 9, 10, 11, 12), "2,4-5,6a"),
        ((), ""),
    ],
)
def test_what_is_written(numbers, text):
    assert PAIRS.describe(numbers) == text


@given(st.sets(st.integers(0, 40), min_size=1))
def test_what_is_written_is_read(numbers):
    assert PAIRS.named(parse(PAIRS.describe(numbers))) == tuple(sorted(numbers))


def test_layers_need_not_be_pairs():
    assert MIXED.head == len(MIXED) == 7
    assert MIXED.layers == 4
    assert [MIXED.of_layer(layer) for layer in range(4)] == [
        range(2),
        range(2, 3),
        range(3, 6),
        range(6, 7),
    ]
    assert [MIXED.first(layer) for layer in range(5)] == [0, 2, 3, 6, 7]
    assert MIXED.named(parse("2m")) == (4, 5)
    assert MIXED.named(parse("1-2")) == (2, 3, 4, 5)
    assert MIXED.describe((2, 3, 4, 5)) == "1-2"


@pytest.mark.parametrize(
    ("mask", "window", "behind"),
    [
        ("causal", None, 0),
        ("window:1", 1, 0),
        ("window:512", 512, 0),
        ("chunk:512", 512, 0),
        ("all", None, None),
        ("around:64", 65, 64),
    ],
)
def test_masks(mask, window, behind):
    assert window_of(mask) == window
    assert behind_of(mask) == behind
    assert in_chunks(mask) == (mask == "chunk:512")


@pytest.mark.parametrize(
    "mask", ["", "window:0", "chunk:0", "window:", "windows:3", "window:-1", "bidirectional"]
)
def test_masks_that_are_not_known(mask):
    with pytest.raises(ValueError, match=": use causal, window:N, chunk:N, all or around:N"):
        window_of(mask)
