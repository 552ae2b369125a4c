"""Reading UTF-8 text from files and streams."""

from __future__ import annotations

from pathlib import Path

from edgespec.errors import InputError


def read_utf8(path: Path, what: str = "it") -> str:
    """Reads a text file.

    Args:
        path: path of the file.
        what: name of the content in the error message.

    Raises:
        InputError: if the file is not UTF-8.
        OSError: if the file cannot be read.
    """
    return decoded(path.read_bytes(), str(path), what)


def decoded(data: bytes, source: str, what: str = "it") -> str:
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
