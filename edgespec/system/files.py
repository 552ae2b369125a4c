"""Files: replaced at once, also when the power fails, and read as UTF-8."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from edgespec.errors import InputError

MOST_BYTES = 1 << 29
"""Bytes of a file that is read whole, unless another limit is given."""

PRIVATE, PRIVATE_FOLDER = 0o600, 0o700
"""Modes of files and folders that are for their owner alone."""


@contextmanager
def replaced(path: Path, private: bool = False) -> Iterator[Path]:
    """Yields a temporary path that replaces `path` if the block ends without an error.

    A symbolic link stays one: the file that it points to is replaced. A file that was there keeps
    who may read it.

    Args:
        path: path of the file.
        private: whether a new file is for its owner alone, since it holds users' texts.

    Raises:
        InputError: if `path` cannot be written; an existing file stays as it was.
    """
    try:
        target = _target(path)
        # Moving a file here would replace a device, or a loop of links, by a regular file.
        if os.path.lexists(target) and not target.is_file():
            raise OSError("not a regular file")
        if target.exists() and not os.access(target, os.W_OK):  # a move checks only the folder
            raise OSError("write-protected")
        # The temporary folder is removed even if an error prevents the move.
        with tempfile.TemporaryDirectory(prefix=".edgespec-", dir=target.parent) as folder:
            partial = Path(folder) / "partial"
            yield partial
            sync_file(partial)
            if target.exists():
                shutil.copymode(target, partial)
            elif private:
                partial.chmod(PRIVATE)
            partial.replace(target)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path} cannot be written ({reason}): name a file in an existing, writable folder"
        ) from error


def sync_file(path: Path) -> None:
    """Makes the content of a file survive a power cut, before it gets the name that others read."""
    with path.open("rb+") as file:  # Windows flushes only files open for writing
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes renames and new files in a folder survive a power cut, where the system can do that."""
    if os.name != "posix":  # Windows cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network filesystems refuse it
            os.fsync(handle)
    finally:
        os.close(handle)


def open_regular(path: Path) -> BufferedReader:
    """Opens a file for reading, but no pipe and no device, which may never end.

    Raises:
        OSError: if it is one, or cannot be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or device, no file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """Reads a file whole, as `open_regular` opens it.

    Raises:
        OSError: also if it has more than `most` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= most:
            content = file.read(size + 1)  # a read of more would take the memory for it at once
            if len(content) > size:
                content += file.read(most)
            size = len(content)
        if size > most:
            raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB", str(path))
    return content


def read_text(path: Path) -> str:
    """Reads a text file with whatever ends of lines, as `read_file` does.

    Raises:
        OSError: see `read_file`.
        UnicodeDecodeError: if it is not UTF-8.
    """
    return read_file(path).decode().replace("\r\n", "\n").replace("\r", "\n")


def read_utf8(path: Path, what: str = "it") -> str:
    """Reads a text file.

    Args:
        path: path of the file.
        what: name of the content in the error message.

    Raises:
        InputError: if the file is not UTF-8.
        OSError: if the file cannot be read.
    """
    return decode_text(read_file(path), str(path), what)


def decode_text(data: bytes, source: str, what: str = "it") -> str:
    """Decodes UTF-8 bytes, and removes a byte order mark and the carriage returns of Windows.

    Args:
        data: bytes to decode.
        source: name of their origin in the error message.
        what: name of the content in the error message.

    Raises:
        InputError: if the bytes are not UTF-8.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source}: byte {error.start} is not UTF-8: give {what} as UTF-8"
        ) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def exists(path: str | Path) -> bool:
    """Whether there is a file or folder of this name, which may be none that a path can have."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long, or with a NUL character
        return False


def typed_path(name: str) -> Path:
    """Returns the path that a user has typed, with ~ for the home folder where there is one."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def _target(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:  # the name has a NUL character
        raise OSError(error) from error
