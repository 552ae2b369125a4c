"""Where a bundle appears: whole, or not at all."""

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

from edgespec.bundle import CHANGING, MANIFEST
from edgespec.errors import ExportError

_PARTIAL, _REPLACED = "partial", "replaced"
_DROPPINGS = (".DS_Store", "Thumbs.db", "desktop.ini")  # of file managers, wherever one looks
_log = logging.getLogger(__name__)


@contextmanager
def replacing(output: Path, overwrite: bool, sources: Sequence[Path] = ()) -> Iterator[Path]:
    """A hidden folder beside `output` that becomes `output` if all goes well and vanishes if not.

    Args:
        output: the folder to make.
        overwrite: replace a bundle, or an empty folder, that is there already.
        sources: folders that are read for it, none of which may lie in `output`.

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
        _check_place(output, overwrite)  # again: much can appear there during an export
        _swap(folder, output)
    except OSError as error:
        remedy = "free some space" if error.errno == errno.ENOSPC else "check the path"
        raise ExportError(
            f"{output} could not be written ({error.strerror or error}): {remedy} and run it again"
        ) from error
    finally:
        _remove(folder)


def _resolved(output: Path) -> Path:
    with suppress(RuntimeError):  # what a loop is up to Python 3.12
        resolved = output.resolve()
        if not os.path.islink(resolved):  # noqa: PTH114 - unlike Path's, it raises nothing
            return resolved
    raise ExportError(f"{output} is a loop of symbolic links: remove it, or choose another name")


def _check_parent(output: Path) -> None:
    if not output.parent.is_dir():
        state = "is not a folder" if output.parent.exists() else "does not exist"
        raise ExportError(f"{output} cannot be made: {output.parent} {state}: make that folder")


def _check_sources(output: Path, sources: Sequence[Path]) -> None:
    for source in sources:
        if output in source.resolve().parents:
            raise ExportError(
                f"{source} lies in {output}, where the bundle is wanted: choose another name"
            )


def _check_place(output: Path, overwrite: bool) -> None:
    """Nothing but a bundle or an empty folder is ever replaced, and these only if asked for."""
    if not output.exists():
        return
    listed = _listed(output)
    if listed is None:
        raise ExportError(f"{output} exists and is not a bundle: choose another name")
    names = (file.name for file in output.iterdir())
    foreign = [each for each in names if each not in listed and not each.startswith(CHANGING)]
    if foreign:
        raise ExportError(
            f"{output} holds {min(foreign)}, which is no part of the bundle there: move it "
            "elsewhere, or choose another name"
        )
    if not overwrite:
        raise ExportError(f"{output} exists: choose another name, or pass --overwrite")


def _listed(output: Path) -> set[str] | None:
    """The files of a bundle, by name; none of an empty folder, None of anything else."""
    if not output.is_dir():
        return None
    try:
        manifest = json.loads((output / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None if any(output.iterdir()) else set()
    # Other software has a manifest.json too.
    if not isinstance(manifest, dict) or not {"format", "roles"} <= manifest.keys():
        return None
    files = manifest.get("files")
    return {MANIFEST, *files, *_DROPPINGS} if isinstance(files, dict) else None


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
    _remove(old)


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
                _remove(folder)


def _remove(folder: Path) -> None:
    """Delete a folder, if it is there, even if it is write-protected."""
    shutil.rmtree(folder, ignore_errors=True)
    for place, _, _ in os.walk(folder):
        with suppress(OSError):
            Path(place).chmod(stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):  # unlike `exists`, it raises nothing over an error under way
        _log.warning("%s could not be removed: nobody needs it, remove it by hand", folder)


def _alive(process: int) -> bool:
    """Whether another process has this id; in containers our own may be a killed one's."""
    return process != os.getpid() and psutil.pid_exists(process)


def _sibling(output: Path, kind: str) -> Path:
    return output.parent / f"{_prefix(output, kind)}{os.getpid()}"


def _prefix(output: Path, kind: str) -> str:
    return f".{output.name}.{kind}-"
