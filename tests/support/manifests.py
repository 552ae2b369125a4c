"""Changes to manifests of bundles, and checks of the errors of loading them."""

from __future__ import annotations

import json

import pytest

from edgespec import bundle as bundles
from edgespec.bundle import MANIFEST
from edgespec.errors import BundleError


def manifest_of(folder):
    return json.loads((folder / MANIFEST).read_text())


def refused(folder, *parts):
    with pytest.raises(BundleError) as caught:
        bundles.load(folder)
    for part in parts:
        assert part in str(caught.value)


def changed(text, place, value):
    """Returns a manifest with one value replaced."""
    *path, last = (int(name) if name.isdecimal() else name for name in place.split("."))
    record = manifest = json.loads(text)
    for name in path:
        record = record[name]
    record[last] = value
    return json.dumps(manifest)
