"""Files with what a session keeps, in safetensors format; each belongs to one bundle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from edgespec.bundle import TARGET
from edgespec.errors import InputError
from edgespec.llm.prompt_files import seals_of
from edgespec.runtime.arrays import Array
from edgespec.runtime.sequences.model import AFTER, Model, Rows
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.system.files import replaced

VERSION = "4"
_KIND = "edgespec session"
_TOKENS = "tokens"
_SALT = "salt"
_FACTS = {"kind", "version", "bundle"}

Tensors = Mapping[str, Array]
Models = Mapping[str, Model]
"""Models by role."""


def tensors_of(models: Models, tokens: list[int], salt: str) -> Tensors:
    """Returns what the models know of tokens.

    It is `ROLE.tokens` [n] int64, and the arrays of `TokenSequence.read` below `ROLE.`; of a target
    with a salt also that, `target.salt` [n] uint8.

    Args:
        models: the models, of which no pass is made meanwhile.
        tokens: the tokens.
        salt: that of the target's sequence.
    """
    tensors: dict[str, Array] = {}
    if salt:
        tensors[f"{TARGET}.{_SALT}"] = np.frombuffer(salt.encode(), np.uint8)
    for role, model in models.items():
        sequence = model.sequence(tokens)
        sequence.salt = salt if role == TARGET else ""
        model.prefixes.extend(sequence, len(tokens))
        _settle(model, sequence)
        held = sequence.read()
        tensors |= {f"{role}.{name}": np.ascontiguousarray(array) for name, array in held.items()}
        tensors[f"{role}.{_TOKENS}"] = np.array(tokens[: sequence.length], np.int64)
        sequence.free()
    return tensors


def _settle(model: Model, sequence: TokenSequence) -> None:
    """Reads rows again that the states of recurrent layers do not have, so that they do.

    What is kept of these rows differs between devices.
    """
    if sequence.recurrence is None:
        return
    end = sequence.length
    sequence.cut(sequence.recurrence.covered)
    tokens = sequence.tokens[sequence.length : end]
    if tokens:
        parents = [AFTER, *range(len(tokens) - 1)]
        rows = Rows(sequence, tokens, parents, [], certain=len(tokens))
        model.forward([rows])
        rows.accept(range(len(tokens)))


def save(path: Path, digest: str, tensors: Tensors) -> None:
    """Writes a file, for its owner alone, replacing one atomically.

    Args:
        path: path of the file; its folder must exist.
        digest: digest of the bundle.
        tensors: from `tensors_of`.

    Raises:
        InputError: if the file cannot be written.
    """
    facts = {"kind": _KIND, "version": VERSION, "bundle": digest}
    metadata = {**seals_of(digest, tensors), **facts}
    try:
        with replaced(path, private=True) as partial:
            save_file(dict(tensors), partial, metadata)
    except SafetensorError as error:
        raise InputError(f"{path} cannot be written ({error}): name another file") from error


def read_tensors(path: Path, digest: str) -> Tensors:
    """Reads a file that `save` has written.

    Raises:
        InputError: if it cannot be read, is damaged, or belongs to another version or bundle.
    """
    try:
        with safe_open(path, "numpy") as file:
            _check(path, seals := file.metadata() or {}, digest)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, TypeError) as error:
        raise InputError(f"{path} cannot be read as a session ({error}): save it again") from error
    # Whoever changed a file must not be able to change a text.
    if {n: each for n, each in seals.items() if n not in _FACTS} != seals_of(digest, tensors):
        raise InputError(f"{path} is damaged (its content is not what was saved): save it again")
    return tensors


def restore(path: Path, tensors: Tensors, models: Models, kept: TokenSequence, most: int) -> None:
    """Lets models know what a file holds.

    Args:
        path: path of the file, for errors.
        tensors: its contents.
        models: the models, of which no pass is made meanwhile.
        kept: a sequence of the target, which keeps it; see `PrefixTree.keep`.
        most: largest number of tokens to restore.

    Raises:
        InputError: if the file is damaged; then no model knows anything of it.
        MemoryLimitError: if running texts need the slots.
    """
    restored: dict[str, TokenSequence] = {}
    try:
        for role, model in models.items():
            below = f"{role}."
            own = {n.removeprefix(below): t for n, t in tensors.items() if n.startswith(below)}
            if own:  # else it was saved without this model
                restored[role] = _sequence(model, own, most)
            elif role == TARGET:
                raise ValueError("it has no target")
        for role, sequence in restored.items():
            models[role].prefixes.add(sequence, sequence.length)
        models[TARGET].prefixes.keep(kept, restored[TARGET])
    except (KeyError, ValueError) as error:
        raise InputError(f"{path} is damaged (the cache of its {role}): save it again") from error
    finally:
        for sequence in restored.values():
            sequence.free()


def _sequence(model: Model, tensors: Tensors, most: int) -> TokenSequence:
    """Returns a sequence of what a file holds for a model; raises KeyError or ValueError."""
    ids = tensors[_TOKENS]
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise ValueError(_TOKENS)
    rows = {name: tensors[name] for name in model.pool.arrays}
    if any(array.ndim < 3 or array.shape[2] != ids.size for array in rows.values()):
        raise ValueError("rows")
    if model.pool.recurrent is not None and ids.size > most:
        return model.sequence([])  # a state cannot be cut
    sequence = model.sequence(ids[:most].tolist())
    if _SALT in tensors:
        sequence.salt = tensors[_SALT].tobytes().decode()
    sequence.write({**tensors, **{name: array[:, :, :most] for name, array in rows.items()}})
    return sequence


def _check(path: Path, metadata: Mapping[str, str], digest: str) -> None:
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
