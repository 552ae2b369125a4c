"""Finds what reads pictures in a checkpoint's folder, by the name of the whole model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgespec.models.formats.safetensors_folder import SafetensorsFolder
from edgespec.models.formats.tensors import check_shapes
from edgespec.models.vision.gemma4 import GEMMA4, PIXELS, PatchTower, read_patch_tower
from edgespec.models.vision.gemma4_unified import UNIFIED, PatchEmbedder, read_patch_embedder
from edgespec.models.vision.grid import GridTower
from edgespec.models.vision.internvl import INTERNVL, INTERNVL_PIXELS, read_internvl_tower
from edgespec.models.vision.lfm2_vl import LFM2_PIXELS, LFM2_VL, read_lfm2_tower
from edgespec.models.vision.qwen2_5_vl import Qwen25VlTower
from edgespec.models.vision.qwen_vl import PATCHES, Qwen3VlTower, Qwen35Tower
from edgespec.models.vision.tower import PIECES, Tower, picture_settings, read_pieces, read_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource

_log = logging.getLogger(__name__)

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


def read_tower(path: Path, fields: ConfigFields) -> AnyTower | None:
    """Reads what makes rows of pictures, and checks its tensors.

    Args:
        path: The checkpoint's folder.
        fields: The config of the whole model.

    Returns:
        None if the model has none that is known here, and, with a line in the log, if it lacks the
        file that says what becomes of pictures before.

    Raises:
        UnsupportedModelError: It needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    found = _READERS.get(str(fields.get("model_type")))
    if found is None or fields.get("vision_config") is None:
        return None
    settings = picture_settings(path, found[0])
    return None if settings is None else found[1](SafetensorsFolder(path), fields, settings)


def read_qwen_tower(
    source: TensorSource, fields: ConfigFields, settings: ConfigFields
) -> GridTower | None:
    """Reads a tower of Qwen's, if the files have it, and not the text part alone.

    Args:
        source: The tensors.
        fields: The config of the whole model, one of `QWEN_TOWERS`.
        settings: What becomes of pictures before.

    Raises:
        UnsupportedModelError: It needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    if not any(name.endswith(PATCHES) for name in source.names):
        _log.warning("%s: there is no %s, so that it reads texts alone", fields.source, PATCHES)
        return None
    tower = QWEN_TOWERS[str(fields.get("model_type"))](fields, settings, source).tower()
    check_shapes(source, tower.tensors())
    return tower


_Reader = Callable[["TensorSource", "ConfigFields", "ConfigFields"], AnyTower | None]

_READERS: Mapping[str, tuple[Mapping[str, object], _Reader]] = {
    GEMMA4: (PIXELS, read_patch_tower),
    UNIFIED: (PIXELS, read_patch_embedder),
    INTERNVL: (INTERNVL_PIXELS, read_internvl_tower),
    LFM2_VL: (LFM2_PIXELS, read_lfm2_tower),
    "gemma3": (PIECES, read_whole),
    "idefics3": (PIECES, read_pieces),
    "smolvlm": (PIECES, read_pieces),
    **dict.fromkeys(QWEN_TOWERS, (_QWEN_PIXELS, read_qwen_tower)),
}
