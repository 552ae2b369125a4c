"""Keeps matrices that calibration has rounded, on disk since they are large, until the export."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgespec.export.formats.blocks import QuantizedRows


class RoundedMatrices(Mapping[str, QuantizedRows]):
    """Quantized matrices by name, in a temporary file that is deleted with the `with` statement.

    If the system supports it, the file has no name, so that even a killed process leaves none.

    Args:
        folder: folder with room for the file.
        exact: names of matrices that are stored without rounding.
    """

    def __init__(self, folder: Path, exact: Collection[str] = ()) -> None:
        self._exact = exact
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
        self._kept: dict[str, tuple[int, tuple[int, ...], QuantizedRows]] = {}

    def __enter__(self) -> RoundedMatrices:
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.close()

    def wants(self, name: str) -> bool:
        """Whether a matrix is to be rounded."""
        return name not in self._exact

    def keep(self, name: str, rows: QuantizedRows) -> None:
        """Stores a matrix in the file; its scales stay in memory."""
        place, shape = self._file.seek(0, 2), rows.packed.shape
        self._file.write(rows.packed.data)
        self._kept[name] = place, shape, replace(rows, packed=np.empty(0, np.uint8))

    def __getitem__(self, name: str) -> QuantizedRows:
        place, shape, rows = self._kept[name]
        packed = np.empty(shape, np.uint8)
        self._file.seek(place)
        self._file.readinto(packed.data)
        return replace(rows, packed=packed)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)
