"""Reads weights, and refuses those that a damaged or unusual checkpoint has."""

from __future__ import annotations

import numpy as np

from edgespec.errors import CheckpointError, ExportError
from edgespec.export.arrays import Floats
from edgespec.models import TensorSource

_LARGEST = float(np.finfo(np.float16).max)


def read_finite(tensors: TensorSource, name: str, start: int, stop: int) -> Floats:
    """Reads rows of a tensor.

    Raises:
        CheckpointError: if they contain infinity or NaN.
    """
    rows = tensors.read_rows(name, start, stop)
    if not np.isfinite(rows).all():
        raise CheckpointError(
            f"{tensors.place(name)}: {name} contains infinity or NaN in rows {start} to "
            f"{stop - 1}: download the checkpoint again"
        )
    return rows


def check_range(tensors: TensorSource, name: str, rows: Floats) -> None:
    """Checks that half precision can represent all numbers.

    Raises:
        ExportError: if one is out of range.
    """
    if np.abs(rows).max() > _LARGEST:
        raise ExportError(
            f"{tensors.place(name)}: {name} contains {np.abs(rows).max():.6g}, but the largest "
            f"number of half precision is {_LARGEST:g}: export at fp32"
        )
