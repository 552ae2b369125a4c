"""Lengths of time as people write them."""

from __future__ import annotations

import math
import re

from edgespec.errors import InputError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_PART = re.compile(rf"({_NUMBER.pattern})(ms|s|m|h)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str) -> float:
    """Returns seconds of a text such as `90`, `5m` or `1h30m`; infinity if it is negative.

    Raises:
        InputError: if it is no length of time.
    """
    told = text.strip()
    if told[:1] == "-" != told[1:2]:
        parse_duration(told[1:])
        return math.inf
    if _NUMBER.fullmatch(told):
        return float(told)
    if not _WHOLE.fullmatch(told):
        raise InputError(f"{text!r:.40} is no length of time: give one such as 90s, 5m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(told))
