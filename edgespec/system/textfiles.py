"""Texts from outside, which are UTF-8."""

from __future__ import annotations

from pathlib import Path

from edgespec.errors import InputError


def read_utf8(path: Path, what: str = "it") -> str:
    """A file's text.

    Args:
        path: of the file.
        what: see `decoded`.

    Raises:
        InputError: if it is not UTF-8.
        OSError: if it cannot be read.
    """
    return decoded(path.read_bytes(), str(path), what)


def decoded(data: bytes, source: str, what: str = "it") -> str:
    """The text of bytes, without what Windows adds: a byte order mark, and returns in line ends.

    Args:
        data: bytes.
        source: where they are from.
        what: they hold, for the remedy.

    Raises:
        InputError: if they are not UTF-8.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source}: byte {error.start} is not UTF-8: give {what} as UTF-8"
        ) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n")
