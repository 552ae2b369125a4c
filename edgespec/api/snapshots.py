"""Files with the caches of a session, in safetensors format; each belongs to one bundle."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from edgespec.errors import InputError
from edgespec.runtime.arrays import Array
from edgespec.runtime.execution.slots import Slot, Slots
from edgespec.system.files import replaced

VERSION = "1"
_KIND = "edgespec session"
_TOKENS = ".tokens"


def save(path: Path, digest: str, slot: Slot) -> None:
    """Writes the caches of a session, replacing the file atomically.

    Args:
        path: path of the file; its folder must exist.
        digest: digest of the bundle.
        slot: caches to write; they must not change meanwhile.

    Raises:
        InputError: if the file cannot be written.
    """
    tensors: dict[str, Array] = {}
    for role, runner in slot.runners.items():
        tensors[role + _TOKENS] = np.array(runner.tokens, np.int64)
        for stage, rows in enumerate(runner.snapshot(runner.length)):
            tensors[f"{role}.{stage}"] = rows
    metadata = {"kind": _KIND, "version": VERSION, "bundle": digest}
    try:
        with replaced(path) as partial:
            save_file(tensors, partial, metadata)
    except SafetensorError as error:
        raise InputError(f"{path} cannot be written ({error}): name another file") from error


def restore(path: Path, digest: str, slots: Slots, slot: Slot, most: int) -> None:
    """Fills a slot with the caches that `save` has written.

    Args:
        path: path of the file.
        digest: digest of the loaded bundle.
        slots: all slots of the loaded model.
        slot: slot to fill.
        most: maximum number of tokens to restore, which memory was planned for.

    Raises:
        InputError: if the file cannot be read, is damaged, or belongs to another version or bundle.
    """
    tensors = _read(path, digest)
    lengths = [ids.size for name, ids in tensors.items() if name.endswith(_TOKENS)]
    runners = slots.make_ready(slot, min(max(lengths, default=1), most))
    slot.began = bool(lengths)
    for role, runner in runners.items():
        if role + _TOKENS not in tensors:  # saved without this model, whose cache starts empty
            continue
        ids, empty = tensors[role + _TOKENS], runner.snapshot(0)
        caches = [tensors.get(f"{role}.{stage}", ids) for stage in range(len(empty))]
        if ids.dtype != np.int64 or not all(map(partial(_fits, ids), caches, empty)):
            raise InputError(f"{path} is damaged (the cache of its {role}): save it again")
        runner.restore(ids[:most].tolist(), [rows[:, :, :, :most] for rows in caches])


def _fits(ids: Array, cache: Array, empty: Array) -> bool:
    """Whether a cache has one row per token, and otherwise the shape of an empty one."""
    shape = (*empty.shape[:3], ids.size, empty.shape[4])
    return ids.ndim == 1 and cache.dtype == empty.dtype and cache.shape == shape


def _read(path: Path, digest: str) -> dict[str, Array]:
    try:
        with safe_open(path, "numpy") as file:
            _check(path, file.metadata() or {}, digest)
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read as a session ({error}): save it again") from error


def _check(path: Path, metadata: dict[str, str], digest: str) -> None:
    """Checks the metadata before any tensor is read.

    Other files may be large, and may have tensor types that numpy does not support.
    """
    if metadata.get("kind") != _KIND or metadata.get("version") != VERSION:
        raise InputError(
            f"{path} is not a session file of version {VERSION} (its metadata: {metadata}): save "
            "the session again"
        )
    if metadata.get("bundle") != digest:
        raise InputError(
            f"{path} belongs to the bundle {metadata.get('bundle')}, but {digest} is loaded: "
            "load that bundle, or start a new session"
        )
