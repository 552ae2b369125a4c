"""Finds what reads pictures in a checkpoint's folder, by the name of the whole model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from edgespec.models.formats.safetensors_folder import SafetensorsFolder
from edgespec.models.formats.tensors import check_shapes
from edgespec.models.vision.gemma4 import GEMMA4, PIXELS, PatchTower, read_patch_tower
from edgespec.models.vision.gemma4_unified import UNIFIED, PatchEmbedder, read_patch_embedder
from edgespec.models.vision.grid import GridTower
from edgespec.models.vision.qwen2_5_vl import Qwen25VlTower
from edgespec.models.vision.qwen_vl import PATCHES, Qwen3VlTower, Qwen35Tower
from edgespec.models.vision.tower import (
    SPLITTING,
    WHOLE,
    Tower,
    picture_settings,
    read_pixels,
    tower_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource

AnyTower = Tower | PatchTower | PatchEmbedder | GridTower

QWEN_TOWERS: Mapping[str, type[Qwen3VlTower]] = {
    "qwen2_5_vl": Qwen25VlTower,
    "qwen3_5": Qwen35Tower,
    "qwen3_5_moe": Qwen35Tower,
    "qwen3_vl": Qwen3VlTower,
    "qwen3_vl_moe": Qwen3VlTower,
}
"""By the name of the whole model, what describes its tower."""

# Default values of transformers.
_QWEN_PIXELS: Mapping[str, object] = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "resample": 3,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "rescale_factor": 1 / 255,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}

_log = logging.getLogger(__name__)


def read_tower(path: Path, fields: ConfigFields) -> AnyTower | None:
    """Reads what makes rows of pictures, and checks its tensors.

    Args:
        path: The checkpoint's folder.
        fields: The config of the whole model.

    Returns:
        None if the model has none that is known here, or lacks the file that says what becomes of
        pictures before; a log says so.

    Raises:
        UnsupportedModelError: It needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    kind = fields.get("model_type")
    if kind in QWEN_TOWERS:
        return _qwen_tower(path, fields)
    if kind in (GEMMA4, UNIFIED) and fields.get("vision_config") is not None:
        found = picture_settings(path, PIXELS)
        if found is None:
            return None
        read = read_patch_tower if kind == GEMMA4 else read_patch_embedder
        return read(SafetensorsFolder(path), fields, found)
    if kind not in (*SPLITTING, WHOLE):
        return None
    pixels = read_pixels(path, kind == WHOLE)
    if pixels is None:
        return None
    return tower_of(fields, pixels, SafetensorsFolder(path))


def _qwen_tower(path: Path, fields: ConfigFields) -> GridTower | None:
    """Reads a tower of Qwen's, if the folder has it, and not the text part alone."""
    settings = picture_settings(path, _QWEN_PIXELS)
    if settings is None:
        return None
    source = SafetensorsFolder(path)
    if not any(name.endswith(PATCHES) for name in source.names):
        _log.warning("%s has no %s, so that it reads texts alone", path, PATCHES)
        return None
    return qwen_tower_of(fields, settings, source)


def qwen_tower_of(fields: ConfigFields, settings: ConfigFields, source: TensorSource) -> GridTower:
    """Describes what makes rows of pictures, and checks its tensors.

    Args:
        fields: The config of the whole model, one of `QWEN_TOWERS`.
        settings: What becomes of pictures before.
        source: The tensors, among them one whose name ends with `PATCHES`.

    Raises:
        UnsupportedModelError: It needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    tower = QWEN_TOWERS[str(fields.get("model_type"))](fields, settings, source).tower()
    check_shapes(source, tower.tensors())
    return tower
