"""Where a bundle appears: whole, or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from edgespec.bundle import MANIFEST
from edgespec.errors import ExportError

_PARTIAL, _REPLACED = "partial", "replaced"


@contextmanager
def replacing(output: Path, overwrite: bool) -> Iterator[Path]:
    """A hidden folder beside `output` that becomes `output` if all goes well and vanishes if not.

    Args:
        output: the folder to make.
        overwrite: replace a bundle, or an empty folder, that is there already.

    Raises:
        ExportError: if `output` cannot or must not be written.
    """
    output = output.resolve()
    folder = _sibling(output, _PARTIAL)
    try:
        _check_parent(output)
        _clean_up_after_killed(output)
        _check_place(output, overwrite)
        folder.mkdir()
        yield folder
        _check_place(output, overwrite)  # again: much can appear there during an export
        _swap(folder, output)
    except OSError as error:
        remedy = "free some space" if error.errno == errno.ENOSPC else "check the path"
        raise ExportError(
            f"{output} could not be written ({error.strerror or error}): {remedy} and run it again"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_parent(output: Path) -> None:
    if not output.parent.is_dir():
        state = "is not a folder" if output.parent.exists() else "does not exist"
        raise ExportError(f"{output} cannot be made: {output.parent} {state}: make that folder")


def _check_place(output: Path, overwrite: bool) -> None:
    """Nothing but a bundle or an empty folder is ever replaced, and these only if asked for."""
    if output.exists() and not _replaceable(output):
        raise ExportError(f"{output} exists and is not a bundle: choose another name")
    if output.exists() and not overwrite:
        raise ExportError(f"{output} exists: choose another name, or pass --overwrite")


def _replaceable(output: Path) -> bool:
    if not output.is_dir():
        return False
    try:
        manifest = json.loads((output / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return not any(output.iterdir())
    # Other software has a manifest.json too.
    return isinstance(manifest, dict) and {"format", "roles", "files"} <= manifest.keys()


def _swap(folder: Path, output: Path) -> None:
    """Put `folder` in the place of `output`; at every moment a whole bundle is on disk."""
    old = _sibling(output, _REPLACED)
    if output.exists():
        output.rename(old)
    try:
        folder.rename(output)
    except BaseException:
        if old.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _clean_up_after_killed(output: Path) -> None:
    """Remove what exports that were killed left; bring back a bundle they had moved aside."""
    for kind in (_REPLACED, _PARTIAL):
        prefix = _prefix(output, kind)
        for folder in output.parent.iterdir():
            process = folder.name.removeprefix(prefix)
            if process == folder.name or not process.isdigit() or _alive(int(process)):
                continue
            if kind == _REPLACED and not output.exists():
                folder.rename(output)
            else:
                shutil.rmtree(folder, ignore_errors=True)


def _alive(process: int) -> bool:
    """Whether another process has this id; in containers our own may be a killed one's."""
    return process != os.getpid() and psutil.pid_exists(process)


def _sibling(output: Path, kind: str) -> Path:
    return output.parent / f"{_prefix(output, kind)}{os.getpid()}"


def _prefix(output: Path, kind: str) -> str:
    return f".{output.name}.{kind}-"
