"""Types of numpy arrays that many modules share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""Of any element type, as a graph's inputs and outputs are."""

Floats = npt.NDArray[np.float32]
"""Such as logits and hidden rows."""

Mask = npt.NDArray[np.bool_]
"""Which row sees which."""
