"""Opens a draft head of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.errors import CheckpointError
from edgespec.models.fields import ConfigFields
from edgespec.models.heads.checkpoint import (
    HeadCheckpoint,
    HeadFiles,
    TargetSizes,
    check_weights,
)
from edgespec.models.heads.dflash import is_block_head, load_block_head
from edgespec.models.heads.eagle3 import is_eagle3, load_eagle3
from edgespec.models.heads.gemma4_assistant import is_assistant, read_assistant
from edgespec.models.heads.gguf_heads import open_gguf_head
from edgespec.models.heads.mtp import (
    is_gguf,
    is_mtp_alone,
    load_mtp,
    load_mtp_alone,
    may_hold,
)

if TYPE_CHECKING:
    from pathlib import Path

_CONFIG = "config.json"
# What tells each kind of head that is no part of a checkpoint, and what opens it.
_KINDS = (
    (is_block_head, load_block_head),
    (is_assistant, read_assistant),
    (is_mtp_alone, load_mtp_alone),
    (is_eagle3, load_eagle3),
)


def is_head(path: Path) -> bool:
    """Whether this is a head alone, which drafts for a target and is no model.

    Args:
        path: a checkpoint's folder or a GGUF file.

    Raises:
        UnsupportedModelError: A GGUF file needs something that is not implemented.
        CheckpointError: It is damaged.
    """
    if is_gguf(path):
        return open_gguf_head(path) is not None
    if not (path / _CONFIG).is_file():
        return False
    fields = ConfigFields.read(path / _CONFIG)
    return any(is_kind(fields) for is_kind, _ in _KINDS)


def load_head(path: Path, target: TargetSizes) -> HeadCheckpoint:
    """Opens the folder of a head, or of a checkpoint that holds one, and checks it.

    Raises:
        UnsupportedModelError: The head needs something that is not implemented.
        CheckpointError: It is missing, damaged, inconsistent, or of another target.
    """
    if is_gguf(path):
        found = open_gguf_head(path)
        if found is None:
            return load_mtp(path, target)
        files = HeadFiles(path, *found)
    elif path.is_dir():
        files = HeadFiles(path, ConfigFields.read(path / _CONFIG))
    else:
        raise CheckpointError(f"{path} is not a folder: give the folder of a draft head")
    for is_kind, load in _KINDS:
        if is_kind(files.fields):
            check_weights(files.fields, target)
            return load(files, target)
    if may_hold(files.fields):
        return load_mtp(path, target)
    return load_eagle3(files, target)  # says what is missing
