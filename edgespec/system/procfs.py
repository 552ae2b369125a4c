"""What Linux tells in files of fields, one to a line: of processes and processors."""

from __future__ import annotations

from pathlib import Path


def proc_field(file: str, name: str) -> str:
    """The first value of a field; empty where there is none, or no such file."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    for line in lines:
        field, _, value = line.partition(":")
        if field.strip() == name:
            return value.strip()
    return ""
