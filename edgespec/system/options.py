"""Checks for the fields of frozen option classes."""

from __future__ import annotations

import numpy as np

from edgespec.errors import InputError


def take_numpy(options: object) -> None:
    """Replaces numpy scalars in the fields of a frozen options object by Python numbers."""
    for name, value in list(vars(options).items()):
        if isinstance(value, np.generic):
            object.__setattr__(options, name, value.item())


def require_count(name: str, value: object, least: int, optional: bool = False) -> None:
    """Checks that an option is a whole number of at least `least`, or None if it is `optional`.

    Raises:
        InputError: with the name, the value and the allowed range.
    """
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} is {value!r}: give a whole number of at least {least}")


def require_most(name: str, value: int | None, most: int) -> None:
    """Checks that a number is at most `most`.

    Raises:
        InputError: with the name, the value and the limit.
    """
    if value is not None and value > most:
        raise InputError(f"{name} is {value}: give {most} or less")
