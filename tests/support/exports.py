"""Exports that fail, and what lies at and beside their destination."""

from __future__ import annotations

import pytest

from edgespec.export import export_bundle


def content(folder):
    """All that lies in a folder, hidden files too, with its bytes."""
    return {
        str(file.relative_to(folder)): file.read_bytes() if file.is_file() else None
        for file in folder.rglob("*")
    }


def refused(kind, match, output, *arguments):
    """The export fails, and beside and at the destination is what was there before."""
    before = content(output.parent)
    with pytest.raises(kind, match=match):
        export_bundle(arguments[0], output, *arguments[1:])
    assert content(output.parent) == before
