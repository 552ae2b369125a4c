"""Texts from outside, which are UTF-8."""

from __future__ import annotations

from pathlib import Path

from edgespec.errors import InputError


def read_utf8(path: Path, what: str = "it", encoding: str = "utf-8") -> str:
    """A file's text.

    Args:
        path: of the file.
        what: see `decoded`.
        encoding: see `decoded`.

    Raises:
        InputError: if it is not UTF-8.
        OSError: if it cannot be read.
    """
    return decoded(path.read_bytes(), str(path), what, encoding)


def decoded(data: bytes, source: str, what: str = "it", encoding: str = "utf-8") -> str:
    """The text of bytes.

    Args:
        data: bytes.
        source: where they are from.
        what: they hold, for the remedy.
        encoding: utf-8, or utf-8-sig where a byte order mark may come first.

    Raises:
        InputError: if they are not UTF-8.
    """
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source}: byte {error.start} is not UTF-8: give {what} as UTF-8"
        ) from error
