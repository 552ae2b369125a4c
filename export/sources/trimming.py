"""A draft whose output projection scores the most used tokens only.

Most of a large vocabulary is hardly ever drafted, but its rows of the output projection are read
in every call (FR-Spec: Zhao et al., 2025). Tokens that a draft cannot propose are still chosen by
the target, so the text stays the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from edgespec.models import Checkpoint, Linear
from edgespec.models.parts import Part, Parts

_HEAD = "trimmed_head.weight"


def trimmed(checkpoint: Checkpoint, ids: npt.NDArray[np.int64]) -> Checkpoint:
    """Returns a checkpoint whose output projection has these rows of the original one only."""
    decoder = checkpoint.decoder
    head = decoder.lm_head
    return replace(
        checkpoint,
        tensors=Parts(checkpoint.tensors, {_HEAD: Part(head.weight, ids, head.out_features)}),
        decoder=replace(decoder, lm_head=Linear(_HEAD, head.in_features, len(ids)), tied=False),
    )
