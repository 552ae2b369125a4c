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


def with_variant(manifest):
    """Returns a manifest with a compiled variant of the target for NPUs."""
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
    """Returns a manifest with one value replaced."""
    *path, last = (int(name) if name.isdecimal() else name for name in place.split("."))
    record = manifest = json.loads(text)
    if "variants" in path:
        record = manifest = with_variant(manifest)
    for name in path:
        record = record[name]
    record[last] = value
    return json.dumps(manifest)
