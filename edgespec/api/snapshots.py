"""Sessions' caches in files: safetensors, tied to the bundle that they are of."""

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
    """Write a file, which is replaced as a whole or not at all.

    Args:
        path: of the file; its folder exists.
        digest: of the bundle.
        slot: what to write; nothing may change it meanwhile.

    Raises:
        InputError: if it cannot be written.
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
    """Fill a slot with what `save` has written.

    Args:
        path: of the file.
        digest: of the bundle that is loaded.
        slots: its slots.
        slot: one of them.
        most: tokens that memory was planned for; what a longer text has beyond them is left out.

    Raises:
        InputError: if the file cannot be read, is damaged, of another version or another bundle.
    """
    tensors = _read(path, digest)
    lengths = [ids.size for name, ids in tensors.items() if name.endswith(_TOKENS)]
    runners = slots.make_ready(slot, min(max(lengths, default=1), most))
    slot.began = bool(lengths)
    for role, runner in runners.items():
        if role + _TOKENS not in tensors:  # saved without this model: it starts from nothing
            continue
        ids, empty = tensors[role + _TOKENS], runner.snapshot(0)
        caches = [tensors.get(f"{role}.{stage}", ids) for stage in range(len(empty))]
        if ids.dtype != np.int64 or not all(map(partial(_fits, ids), caches, empty)):
            raise InputError(f"{path} is damaged (its {role} does not fit): save it again")
        runner.restore(ids[:most].tolist(), [rows[:, :, :, :most] for rows in caches])


def _fits(ids: Array, cache: Array, empty: Array) -> bool:
    """Whether a cache has a row for each token, and is else as an empty one."""
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
    """Before any tensor is read: other files may be large, and hold what numpy has no type for."""
    if metadata.get("kind") != _KIND or metadata.get("version") != VERSION:
        raise InputError(
            f"{path} is no session of version {VERSION} but says {metadata}: save it again"
        )
    if metadata.get("bundle") != digest:
        raise InputError(
            f"{path} is of the bundle {metadata.get('bundle')} and {digest} is loaded: "
            "load that one, or begin another session"
        )
