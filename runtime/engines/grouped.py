"""What the caches of all engines have in common: they consist of groups of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.held import Held


class _Group(Protocol):
    """The cache of the layers of one `CacheGroup`; methods are those of `Cache` for it alone."""

    held: Held

    def write(self, new_kv: object, rows: Sequence[int], start: int) -> None: ...

    def move(self, rows: Sequence[int], start: int) -> None: ...

    def bytes_at(self, capacity: int) -> int: ...

    def read(self, length: int, start: int) -> Array: ...

    def load(self, rows: Array, length: int) -> None: ...


_GroupT = TypeVar("_GroupT", bound=_Group)


class GroupedCache(Generic[_GroupT]):
    """The part of a `Cache` that does the same for each group of layers.

    Args:
        groups: the groups, in the order of the stage's.
    """

    def __init__(self, groups: Sequence[_GroupT]) -> None:
        self._groups = groups

    @property
    def earliest(self) -> int:
        """See `Cache`."""
        return max((group.held.earliest for group in self._groups), default=0)

    def clear(self) -> None:
        """See `Cache`."""
        for group in self._groups:
            group.held.first = 0

    def write(self, new_kv: Sequence[object], rows: Sequence[int], start: int) -> None:
        """See `Cache`."""
        for group, source in zip(self._groups, new_kv, strict=True):
            group.write(source, rows, start)

    def move(self, rows: Sequence[int], start: int) -> None:
        """See `Cache`."""
        for group in self._groups:
            group.move(rows, start)

    def bytes_at(self, capacity: int) -> int:
        """See `Cache`."""
        return sum(group.bytes_at(capacity) for group in self._groups)

    def read(self, length: int, start: int = 0) -> list[Array]:
        """See `Cache`."""
        return [group.read(length, start) for group in self._groups]

    def load(self, rows: Sequence[Array], length: int) -> None:
        """See `Cache`."""
        for group, given in zip(self._groups, rows, strict=True):
            group.load(given, length)
