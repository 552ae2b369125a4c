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
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():  # a device, whose name would be a file's then
            raise OSError("no regular file")
        # Whatever happens before the file is moved into place, the folder is removed.
        with tempfile.TemporaryDirectory(prefix=".edgespec-", dir=target.parent) as folder:
            partial = Path(folder) / "partial"
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            if target.exists():  # who may read it does not change
                shutil.copymode(target, partial)
            partial.replace(target)
    except (OSError, ValueError) as error:  # a name with a NUL, a text that is not UTF-8
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path} cannot be written ({reason}): name a file in a folder that exists and can be "
            "written to"
        ) from error
