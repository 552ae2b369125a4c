"""What does not come along to another process: threads, locks that they hold, and loaded models."""

from __future__ import annotations

import os
from typing import NoReturn, Protocol
from weakref import WeakSet

from edgespec.errors import InputError


class ForkListener(Protocol):
    """What has threads, or locks of theirs."""

    def after_fork(self) -> None:
        """Makes anew, in a process that was just forked, what its threads had."""


_LIVING = WeakSet[ForkListener]()


def listen_for_forks(one: ForkListener) -> None:
    """Lets it know in each process that is forked, for as long as it lives."""
    _LIVING.add(one)


def _tell() -> None:
    for one in list(_LIVING):
        one.after_fork()


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
