"""Keeps matrices that calibration has rounded, on disk since they are large, until the export."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgespec.export.arrays import Floats
from edgespec.export.formats.rounding import RoundedRows


class RoundedMatrices(Mapping[str, RoundedRows]):
    """Rounded matrices by name, in a temporary file that is deleted with the `with` statement.

    If the system supports it, the file has no name, so that even a killed process leaves none.

    Args:
        folder: folder with room for the file.
        formats: names of the matrices that are to be rounded, and the formats of their tiles.

    Attributes:
        formats: see above.
        importance: how much the columns of matrices count, [K] each, see `rounded`.
    """

    def __init__(self, folder: Path, formats: Mapping[str, str]) -> None:
        self.formats = formats
        self.importance = dict[str, Floats]()
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
        self._kept: dict[str, tuple[int, tuple[int, ...], RoundedRows]] = {}

    def __enter__(self) -> RoundedMatrices:
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.close()

    def keep(self, name: str, rows: RoundedRows, importance: Floats | None) -> None:
        """Stores a matrix in the file, and how much its columns count in memory."""
        place = self._file.seek(0, 2)
        shape = rows.tiles.shape
        self._file.write(rows.tiles.data)
        self._kept[name] = place, shape, replace(rows, tiles=np.empty(0, np.uint8))
        if importance is not None:
            self.importance[name] = importance

    def __getitem__(self, name: str) -> RoundedRows:
        place, shape, rows = self._kept[name]
        tiles = np.empty(shape, np.uint8)
        self._file.seek(place)
        self._file.readinto(tiles.data)
        return replace(rows, tiles=tiles)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)
