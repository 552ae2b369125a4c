"""Opens an adapter, and arranges what it adds as a model's graph has its matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models.adapters.gguf import read_gguf_adapter
from edgespec.models.adapters.peft import CONFIG_FILE, read_peft
from edgespec.models.architectures import ARCHITECTURES
from edgespec.models.families.falcon_h1 import FalconH1
from edgespec.models.families.latent import Latent
from edgespec.models.families.partial_rotation import PartialRotation
from edgespec.models.layers.rope import rotation_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from edgespec.bundle import Role
    from edgespec.models.adapters.updates import Adapter, LowRankUpdate

# Whose matrices in a graph are others than in transformers, or multiplied.
_OTHERWISE = (FalconH1, Latent)
_QUERY = ".self_attn.q_proj.weight"
_KEY = ".self_attn.k_proj.weight"
# Matrices of transformers that are several in a graph, one below the other.
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def open_adapter(path: Path) -> Adapter:
    """Opens an adapter: a folder of PEFT, its file of weights, or a GGUF file.

    Raises:
        UnsupportedModelError: It is no plain LoRA of matrices.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    if path.is_dir():
        if not (path / CONFIG_FILE).is_file():
            raise CheckpointError(f"{path} has no {CONFIG_FILE}: give the folder of an adapter")
        return read_peft(path)
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: give an adapter's folder or file")
    if path.suffix == ".safetensors":
        return read_peft(path.parent, path.name)
    return read_gguf_adapter(path)


def arranged(adapter: Adapter, role: Role, columns: Mapping[str, int]) -> dict[str, LowRankUpdate]:
    """Returns what an adapter adds to the matrices of a graph, by the names they have there.

    Args:
        adapter: The adapter.
        role: The model that it is for.
        columns: The rows of each matrix of the graph that can be added to.

    Raises:
        UnsupportedModelError: It adds to what is no such matrix, or the model's are not those of
            its checkpoint.
    """
    family = ARCHITECTURES.get(role.architecture)
    if family is None or issubclass(family, _OTHERWISE) or not role.writes:
        raise UnsupportedModelError(
            f"{adapter.source}: adapters of {role.architecture} models are not supported: merge it "
            "into its model, and give the result"
        )
    order = np.arange(role.head_dim)
    if adapter.interleaved:
        order = rotation_order(role.head_dim, role.head_dim, interleaved=True)
    if issubclass(family, PartialRotation):
        rotated = 2 * int(np.count_nonzero(role.inv_freq))
        order = order[rotation_order(role.head_dim, rotated, family.interleaved)]
    found: dict[str, LowRankUpdate] = {}
    for stored, update in adapter.updates.items():
        for name, part in _unfused(stored, update, columns):
            if columns.get(name) != len(part.b):
                raise UnsupportedModelError(
                    f"{adapter.source} adds to {name} with {len(part.b)} rows, and the model has "
                    f"{columns.get(name, 'no such matrix')}"
                    f"{' rows there' if name in columns else ' that adapters can add to'}: use an "
                    "adapter of this model, or merge it into its model"
                )
            turned = name.endswith((_QUERY, _KEY))
            found[name] = part.rows(_rows(len(part.b), role, order)) if turned else part
    return found


def _unfused(
    name: str, update: LowRankUpdate, columns: Mapping[str, int]
) -> Iterator[tuple[str, LowRankUpdate]]:
    """Yields an update by the matrices of the graph that one of transformers is made of."""
    parent, _, module = name.removesuffix(".weight").rpartition(".")
    parts = [f"{parent}.{part}.weight" for part in _FUSED.get(module, ())]
    sizes = [columns.get(part, 0) for part in parts]
    if not parts or sum(sizes) != len(update.b):
        yield name, update
        return
    ends = np.cumsum(sizes)
    for part, size, end in zip(parts, sizes, ends, strict=True):
        yield part, update.rows(slice(int(end) - size, int(end)))


def _rows(count: int, role: Role, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the numbers of so many rows of queries or keys, in the order of a graph.

    Gates of heads, which lie behind the queries of each, stay where they are.
    """
    gated = count == 2 * role.heads * role.head_dim
    size = role.head_dim * (1 + gated)
    if count % size:  # which is refused by its size
        return np.arange(count)
    heads = np.arange(count).reshape(-1, size)
    heads[:, : role.head_dim] = heads[:, order]
    return heads.ravel()
