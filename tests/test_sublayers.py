"""How people write sublayers, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.bundle.sublayers import describe, parse
from edgespec.errors import InputError


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
    assert parse(text) == numbers


@pytest.mark.parametrize("text", ["", "x", "3,", "-1", "3b", "3a-4", "1-2-3", "3 to 4"])
def test_what_is_refused(text):
    with pytest.raises(InputError, match="names no sublayers: write 3 for layer 3"):
        parse(text)


@pytest.mark.parametrize("text", ["1-999999999", "12345m", "1" * 5000])
def test_layers_that_no_model_has(text):
    with pytest.raises(InputError, match=f"'{text}': no model has so many layers"):
        parse(text)


def test_a_range_the_wrong_way_round():
    with pytest.raises(InputError, match="'4-2' names no sublayers"):
        parse("4-2")


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
    assert describe(numbers) == text


@given(st.sets(st.integers(0, 40), min_size=1))
def test_what_is_written_is_read(numbers):
    assert parse(describe(sorted(numbers))) == tuple(sorted(numbers))
