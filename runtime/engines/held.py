"""Which positions of a text a group of layers holds, and in which rows."""

from __future__ import annotations

from edgespec.runtime.shapes import ring_rows


class Held:
    """The positions that a group of layers holds: all, or with a window the last ones.

    Args:
        window: number of positions that the layers see; None: all.

    Attributes:
        first: first position that is held.
    """

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._ring = None if window is None else ring_rows(window)
        self.first = 0

    @property
    def earliest(self) -> int:
        """The smallest length that the text can be cut to, besides 0."""
        return self.first + self._window - 1 if self._window and self.first else 0

    def place(self, position: int) -> int:
        """Returns the row of a position."""
        return position if self._ring is None else position % self._ring

    def places(self, start: int, count: int) -> list[int]:
        """Returns the rows of `count` positions from `start` on."""
        return [self.place(position) for position in range(start, start + count)]

    def slices(self, start: int, stop: int) -> list[slice]:
        """Returns the rows of the positions from `start` up to, but not including, `stop`."""
        if stop <= start:
            return []
        first, last = self.place(start), self.place(stop - 1)
        if self._ring is None or first <= last:
            return [slice(first, last + 1)]
        return [slice(first, self._ring), slice(last + 1)]

    def extend(self, stop: int) -> None:
        """Takes in that positions up to, but not including, `stop` have been written."""
        if self._ring is not None:
            self.first = max(self.first, stop - self._ring)
