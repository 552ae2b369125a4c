"""Reading `name: value` files of Linux's /proc."""

from __future__ import annotations

from pathlib import Path


def proc_field(file: str, name: str) -> str:
    """Returns the first value of a field; empty if the field or the file is missing."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    for line in lines:
        field, _, value = line.partition(":")
        if field.strip() == name:
            return value.strip()
    return ""
