"""Bundles' manifests, changed as tests need them, and what loading them says."""

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


def with_variant(manifest):
    """As if it had one of the target's for NPUs, compiled for a device."""
    precision = {"weights": "w8a16", "lm_head": "w8a16", "kv": "fp32", "block_size": 0}
    compiled = {
        "device": "x", "compiler": "y", "stage": 0, "rows": 32, "capacity": 256,
        "graph": "target.onnx", "data": ["target.data"], "source": [],
    }  # fmt: skip
    variant = {
        "role": "target", "name": "npu", "precision": precision, "bias_off": -3e4,
        "stages": manifest["roles"]["target"]["stages"], "compiled": [compiled],
        "quantization_error": {},
    }  # fmt: skip
    return {**manifest, "variants": [variant]}


def changed(text, place, value):
    """A manifest with one value in another's place."""
    *path, last = (int(name) if name.isdecimal() else name for name in place.split("."))
    record = manifest = json.loads(text)
    if "variants" in path:
        record = manifest = with_variant(manifest)
    for name in path:
        record = record[name]
    record[last] = value
    return json.dumps(manifest)
