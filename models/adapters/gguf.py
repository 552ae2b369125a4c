"""Adapters in GGUF files, as llama.cpp's convert_lora_to_gguf writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError
from edgespec.models.adapters.updates import Adapter, LowRankUpdate
from edgespec.models.fields import ConfigFields
from edgespec.models.formats.gguf.architectures import ARCHITECTURES
from edgespec.models.formats.gguf.header import read_header
from edgespec.models.formats.gguf.opening import ADAPTER, keeps_order
from edgespec.models.formats.gguf.tensors import stored_rows

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from edgespec.models.formats.gguf.header import GGUFEntry

_MERGE = "merge it into its model (with llama.cpp's llama-export-lora) and give the result"
_PLAIN: dict[str, tuple[object, ...]] = {
    "adapter.type": ("lora",),
    "adapter.alora.invocation_tokens": (None, []),
}
_ALPHA = "adapter.lora.alpha"
_PARTS = (".lora_a", ".lora_b")
_ANY_LAYER = 1 << 30


def read_gguf_adapter(path: Path) -> Adapter:
    """Reads an adapter in a GGUF file.

    Raises:
        UnsupportedModelError: It is no plain LoRA of matrices, or of an unknown architecture.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    header = read_header(path)
    metadata = ConfigFields(header.metadata, str(path))
    if metadata.get("general.type") != ADAPTER:
        raise metadata.unsupported("general.type", "give the file of an adapter, or its folder")
    metadata.only(_PLAIN, _MERGE)
    kind = metadata.get("general.architecture")
    naming = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if naming is None or not keeps_order(str(kind)):
        raise metadata.unsupported("general.architecture", "give the adapter's folder of PEFT")
    alpha = 0.0 if not metadata.get(_ALPHA) else metadata.number(_ALPHA)
    updates = dict[str, LowRankUpdate]()
    for stem in sorted({name[: -len(_PARTS[0])] for name in header.entries}):
        where = f"{path}: {stem}"
        found = [header.entries.get(stem + part) for part in _PARTS]
        a, b = (_values(where, entry) for entry in found)
        scale = alpha / max(len(a), 1) if alpha else 1.0
        updates[naming.translated(stem, _ANY_LAYER)] = LowRankUpdate.of(where, a, b, scale)
    if not updates:
        raise CheckpointError(f"{path} has no tensors: download the adapter again")
    return Adapter(str(path), updates, naming.interleaved)


def _values(where: str, entry: GGUFEntry | None) -> NDArray[np.float32]:
    """Returns the values of a matrix, [rows, columns]."""
    if entry is None or len(entry.shape) != 2:
        raise CheckpointError(
            f"{where} is no pair of matrices lora_a and lora_b: use another file of the adapter"
        )
    stored = stored_rows(entry, 0, entry.shape[0])
    return entry.encoding.decode(stored).reshape(entry.shape).astype(np.float32, copy=False)
