"""Files with the caches of a session, in safetensors format; each belongs to one bundle."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import count, takewhile
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from edgespec.errors import InputError
from edgespec.runtime.arrays import Array
from edgespec.runtime.execution.slots import Slot, Slots
from edgespec.runtime.execution.snapshot import Snapshot
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
        snapshot = runner.snapshot(sys.maxsize)
        tensors[role + _TOKENS] = np.array(snapshot.tokens, np.int64)
        tensors |= named(role, snapshot)
    metadata = {"kind": _KIND, "version": VERSION, "bundle": digest}
    try:
        with replaced(path) as partial:
            save_file(tensors, partial, metadata)
    except SafetensorError as error:
        raise InputError(f"{path} cannot be written ({error}): name another file") from error


def restored(path: Path, digest: str, slots: Slots, most: int) -> Slot:
    """Adds a slot with the caches that `save` has written.

    Args:
        path: path of the file.
        digest: digest of the loaded bundle.
        slots: all slots of the loaded model.
        most: maximum number of tokens to restore, which memory was planned for.

    Raises:
        InputError: if the file cannot be read, is damaged, or belongs to another version or bundle.
    """
    slot = slots.add()
    try:
        _restore(path, digest, slots, slot, most)
    except BaseException:
        slots.remove(slot)
        raise
    return slot


def named(role: str, snapshot: Snapshot) -> dict[str, Array]:
    """Returns the arrays of a snapshot by their names in a file."""
    tensors = {cache_name(role, number): rows for number, rows in enumerate(snapshot.caches)}
    for stage, states in enumerate(snapshot.states):
        tensors |= {f"{role}.{stage}.{name}": array for name, array in states.items()}
    if snapshot.features is not None:
        tensors[features_name(role)] = snapshot.features
    return tensors


def cache_name(role: str, number: int) -> str:
    """Returns the name of a group's rows, by its number among the groups of all stages."""
    return f"{role}.{number}"


def features_name(role: str) -> str:
    """Returns the name of the features."""
    return f"{role}.features"


def states_in(tensors: Mapping[str, Array], role: str) -> list[dict[str, Array]]:
    """Returns what recurrent layers of each stage hold, of the tensors of a file."""
    return list(takewhile(bool, (_below(tensors, f"{role}.{number}.") for number in count())))


def _restore(path: Path, digest: str, slots: Slots, slot: Slot, most: int) -> None:
    tensors = _read(path, digest)
    lengths = [ids.size for name, ids in tensors.items() if name.endswith(_TOKENS)]
    runners = slots.make_ready(slot, min(max(lengths, default=1), most))
    slot.began = bool(lengths)
    for role, runner in runners.items():
        if role + _TOKENS not in tensors:  # saved without this model, whose cache starts empty
            continue
        snapshot = _snapshot(tensors, role)
        if snapshot is None or not runner.fits(snapshot):
            raise InputError(f"{path} is damaged (the cache of its {role}): save it again")
        runner.restore(snapshot.first(most))


def _snapshot(tensors: Mapping[str, Array], role: str) -> Snapshot | None:
    """Returns what a file holds of a role; None if its tokens are damaged."""
    ids = tensors[role + _TOKENS]
    if ids.dtype != np.int64 or ids.ndim != 1:
        return None
    numbers = (cache_name(role, number) for number in count())
    caches = [tensors[name] for name in takewhile(tensors.__contains__, numbers)]
    features = tensors.get(features_name(role))
    return Snapshot(ids.tolist(), caches, features, states_in(tensors, role))


def _below(tensors: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Returns the tensors whose names begin so, by the rest of their names."""
    return {
        name.removeprefix(prefix): array
        for name, array in tensors.items()
        if name.startswith(prefix)
    }


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
