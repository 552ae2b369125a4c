"""Texts in files."""

from __future__ import annotations

from pathlib import Path

from edgespec.errors import InputError


def read_utf8(path: Path, what: str = "it", encoding: str = "utf-8") -> str:
    """A file's text.

    Args:
        path: of the file.
        what: it holds, for the remedy.
        encoding: utf-8, or utf-8-sig where a byte order mark may come first.

    Raises:
        InputError: if it is not UTF-8.
        OSError: if it cannot be read.
    """
    try:
        return path.read_bytes().decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: byte {error.start} is not UTF-8: save {what} as UTF-8"
        ) from error
