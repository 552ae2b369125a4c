"""Lengths of time as people write them."""

from __future__ import annotations

import math

import pytest

from edgespec.errors import InputError
from edgespec.system.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("0", 0), (" 5m ", 300), ("1h30m", 5400), ("250ms", 0.25), ("1.5s", 1.5),
        ("-1", math.inf), ("-5m", math.inf),
    ],
)  # fmt: skip
def test_what_is_written_is_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "5x", "--1", "nan", "inf", "1e3", "5m3"])
def test_what_is_no_length_of_time_is_refused(text):
    with pytest.raises(InputError, match="give one such as 90s, 5m or 1h30m"):
        parse_duration(text)
