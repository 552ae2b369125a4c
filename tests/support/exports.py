"""Checks of exports that fail, and of what they leave behind."""

from __future__ import annotations

import pytest

from edgespec import export


def content(folder):
    """Returns all files in a folder with their bytes, hidden ones included."""
    return {
        str(file.relative_to(folder)): file.read_bytes() if file.is_file() else None
        for file in folder.rglob("*")
    }


def refused(kind, match, output, *arguments):
    """Check that the export fails and leaves its destination and the files beside it unchanged."""
    before = content(output.parent)
    with pytest.raises(kind, match=match):
        export.make(arguments[0], output, *arguments[1:])
    assert content(output.parent) == before
