"""What does not come along to another process: threads, locks that they hold, and loaded models."""

from __future__ import annotations

import os
from typing import NoReturn, Protocol
from weakref import WeakSet

from edgespec.errors import InputError


class Forked(Protocol):
    """What has threads, or locks of theirs."""

    def forked(self) -> None:
        """Makes anew, in a process that was just forked, what its threads had."""


_LIVING = WeakSet[Forked]()


def tell_forks(one: Forked) -> None:
    """Lets it know in each process that is forked, for as long as it lives."""
    _LIVING.add(one)


def _tell() -> None:
    for one in list(_LIVING):
        one.forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_tell)


class Unpicklable:
    """Base of what holds a loaded model, which no other process can take over."""

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise InputError(
            f"{name} cannot be pickled or copied, since it holds a loaded model: load the model in "
            "each process that uses it, and pass on prompts and results"
        )
