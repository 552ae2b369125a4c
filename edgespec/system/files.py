"""Files that are replaced as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgespec.errors import InputError


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Where to write what is to become `path`, and does when the context ends without an error.

    A symbolic link stays one: what it points to is replaced.

    Raises:
        InputError: if it cannot be written; a file that was there stays as it was.
    """
    try:
        target = _target(path)
        # A device's name would be a file's then, and so would that of a loop of links.
        if os.path.lexists(target) and not target.is_file():
            raise OSError("no regular file")
        if target.exists() and not os.access(target, os.W_OK):  # a move asks the folder alone
            raise OSError("write-protected")
        # Whatever happens before the file is moved into place, the folder is removed.
        with tempfile.TemporaryDirectory(prefix=".edgespec-", dir=target.parent) as folder:
            partial = Path(folder) / "partial"
            yield partial
            with partial.open("rb+") as file:  # Windows flushes what may be written alone
                os.fsync(file.fileno())
            if target.exists():  # who may read it does not change
                shutil.copymode(target, partial)
            partial.replace(target)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path} cannot be written ({reason}): name a file in a folder that exists and can be "
            "written to"
        ) from error


def _target(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:  # a name with a NUL
        raise OSError(error) from error
