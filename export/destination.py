"""Puts a bundle in its place as a whole, or not at all."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from edgespec.bundle import MANIFEST
from edgespec.errors import ExportError
from edgespec.system.files import read_file, sync_file

_PARTIAL, _REPLACED = "partial", "replaced"
_SMALL = 32 << 20  # bytes of a file that is not weights, such as a tokenizer
_DROPPINGS = (".DS_Store", "Thumbs.db", "desktop.ini")  # file managers create these anywhere
_log = logging.getLogger(__name__)


@contextmanager
def replacing(output: Path, overwrite: bool, sources: Sequence[Path] = ()) -> Iterator[Path]:
    """Yields a hidden folder beside `output`, which is renamed to `output` at the end.

    If the `with` block raises an exception, the hidden folder is removed instead.

    Args:
        output: the folder to create.
        overwrite: whether to replace an existing bundle or empty folder.
        sources: folders that are read meanwhile; none of them may lie in `output`.

    Raises:
        ExportError: if `output` cannot or must not be written.
    """
    output = _resolved(output)
    folder = _sibling(output, _PARTIAL)
    try:
        _check_parent(output)
        _clean_up_after_killed(output)
        _check_sources(output, sources)
        _check_place(output, overwrite)
        folder.mkdir()
        yield folder
        _check_place(output, overwrite)  # again, since an export takes long
        _sync(folder)
        _swap(folder, output)
    except OSError as error:
        remedy = "free some space" if error.errno == errno.ENOSPC else "check the path"
        raise ExportError(
            f"{output} could not be written ({error.strerror or error}): {remedy} and run it again"
        ) from error
    finally:
        _remove(folder)


def _resolved(output: Path) -> Path:
    with suppress(RuntimeError):  # raised for a loop, up to Python 3.12
        resolved = output.resolve()
        if not os.path.islink(resolved):  # noqa: PTH114 - raises nothing, unlike Path.is_symlink
            return resolved
    raise ExportError(f"{output} is a loop of symbolic links: remove it, or choose another name")


def _check_parent(output: Path) -> None:
    if not output.parent.is_dir():
        state = "is not a folder" if output.parent.exists() else "does not exist"
        raise ExportError(
            f"{output} cannot be created: {output.parent} {state}: create that folder first"
        )


def _check_sources(output: Path, sources: Sequence[Path]) -> None:
    for source in sources:
        if output in source.resolve().parents:
            raise ExportError(
                f"{source} lies in {output}, which the bundle would replace: choose another name"
            )


def _check_place(output: Path, overwrite: bool) -> None:
    """Checks that `output` is free, or a bundle or empty folder that may be overwritten."""
    if not output.exists():
        return
    listed = _listed(output)
    if listed is None:
        raise ExportError(f"{output} exists and is not a bundle: choose another name")
    names = (file.name for file in output.iterdir())
    foreign = [each for each in names if each not in listed]
    if foreign:
        raise ExportError(
            f"{output} contains {min(foreign)}, which is not part of the bundle in that folder: "
            "move it elsewhere, or choose another name"
        )
    if not overwrite:
        raise ExportError(f"{output} exists: choose another name, or pass --overwrite")


def _listed(output: Path) -> set[str] | None:
    """Returns the file names of a bundle; empty for an empty folder, None for anything else."""
    if not output.is_dir():
        return None
    try:
        manifest = json.loads(read_file(output / MANIFEST))
    except (OSError, ValueError, RecursionError):
        return None if any(output.iterdir()) else set()
    # Other software also uses the name manifest.json.
    if not isinstance(manifest, dict) or not {"format", "roles"} <= manifest.keys():
        return None
    files = manifest.get("files")
    return {MANIFEST, *files, *_DROPPINGS} if isinstance(files, dict) else None


def _sync(folder: Path) -> None:
    """Writes small files to the disk, so that a power cut leaves no empty one under a final name.

    Weights are left out: a first start would wait for the disk, a second or more for each GB. What
    a power cut leaves of them is shorter than the manifest says, so that the bundle is refused.
    """
    for file in folder.iterdir():
        if file.is_file() and file.stat().st_size <= _SMALL:
            with suppress(PermissionError):  # linked from a write-protected bundle
                sync_file(file)


def _swap(folder: Path, output: Path) -> None:
    """Replaces `output` by `folder`; at every moment a complete bundle is on disk."""
    old = _sibling(output, _REPLACED)
    if output.exists():
        output.rename(old)
    try:
        folder.rename(output)
    except BaseException:
        if old.exists():
            old.rename(output)
        raise
    _remove(old)


def _clean_up_after_killed(output: Path) -> None:
    """Removes folders of killed exports, and restores a bundle that they had moved aside."""
    for kind in (_REPLACED, _PARTIAL):
        prefix = _prefix(output, kind)
        for folder in output.parent.iterdir():
            process = folder.name.removeprefix(prefix)
            if process == folder.name or not process.isdigit() or _alive(int(process)):
                continue
            if kind == _REPLACED and not output.exists():
                folder.rename(output)
            else:
                _remove(folder)


def _remove(folder: Path) -> None:
    """Deletes a folder if it exists, even if it is write-protected."""
    shutil.rmtree(folder, ignore_errors=True)
    for place, _, _ in os.walk(folder):
        with suppress(OSError):
            Path(place).chmod(stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):  # unlike Path.exists, it never raises, which would hide an error
        _log.warning("%s could not be removed: it is not needed, remove it by hand", folder)


def _alive(process: int) -> bool:
    """Returns whether another process has this id.

    The own id counts as killed: in containers, a killed process often had the same one.
    """
    return process != os.getpid() and psutil.pid_exists(process)


def _sibling(output: Path, kind: str) -> Path:
    return output.parent / f"{_prefix(output, kind)}{os.getpid()}"


def _prefix(output: Path, kind: str) -> str:
    return f".{output.name}.{kind}-"
