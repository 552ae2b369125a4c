"""Checks of what users set: the fields of frozen option classes."""

from __future__ import annotations

import numpy as np

from edgespec.errors import InputError


def take_numpy(options: object) -> None:
    """Replace numpy's scalars among the fields of frozen options by what Python has for them."""
    for name, value in list(vars(options).items()):
        if isinstance(value, np.generic):
            object.__setattr__(options, name, value.item())


def require_count(name: str, value: object, least: int, optional: bool = False) -> None:
    """Refuse what is not a whole number of at least `least`; None passes where it is `optional`.

    Raises:
        InputError: with the name, the value and what to give.
    """
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} is {value!r}: give a whole number from {least} upwards")


def require_most(name: str, value: int | None, most: int) -> None:
    """Refuse a number above `most`.

    Raises:
        InputError: with the name, the value and the bound.
    """
    if value is not None and value > most:
        raise InputError(f"{name} is {value}: give {most} or less")
