"""Types of numpy arrays that exports share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any element type."""

Floats = npt.NDArray[np.float32]
"""A float32 array, such as weights or hidden states."""

Bytes = npt.NDArray[np.uint8]
"""A uint8 array, such as tiles or levels."""
