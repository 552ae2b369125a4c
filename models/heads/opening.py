"""Opens a draft head in whichever form it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.heads.eagle3 import load_eagle3
from edgespec.models.heads.mtp import is_checkpoint, load_mtp

if TYPE_CHECKING:
    from pathlib import Path

    from edgespec.models.heads.head import HeadCheckpoint, TargetSizes


def load_head(path: Path, target: TargetSizes) -> HeadCheckpoint:
    """Opens the folder of a head, or of a checkpoint that holds one, and checks it.

    Raises:
        UnsupportedModelError: The head needs something that is not implemented.
        CheckpointError: It is missing, damaged, inconsistent, or of another target.
    """
    return load_mtp(path, target) if is_checkpoint(path) else load_eagle3(path, target)
