"""A variant that becomes part of a bundle on disk, or does not."""

from __future__ import annotations

import errno
import shutil

import pytest

from edgespec import bundle as bundles
from edgespec.bundle import NPU, TARGET, Compiled, Variant
from edgespec.bundle.variants import replace_variant
from edgespec.models.embedded import BUNDLE


@pytest.fixture
def bundle(tmp_path):
    shutil.copytree(BUNDLE, tmp_path / "bundle")
    return bundles.load(tmp_path / "bundle")


@pytest.fixture
def made(bundle, tmp_path):
    """A variant with one compiled stage, and the folder of that one's file."""
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "one.onnx").write_bytes(b"compiled")
    target = bundle.target
    compiled = (Compiled("qnn:x-elite", "tool 1", 0, 8, 512, "one.onnx", (), ("0" * 64,)),)
    return Variant(TARGET, NPU, target.precision, 0.0, target.stages, compiled, {}), folder


def content(bundle):
    return {file.name: file.read_bytes() for file in bundle.path.iterdir()}


def test_new_files_come_with_it(bundle, made):
    before = content(bundle)
    changed = replace_variant(bundle, *made)
    after = content(bundle)
    assert after.pop("one.onnx") == b"compiled"
    assert after.keys() == before.keys()
    assert changed.size == bundle.size + len(b"compiled")


def test_on_a_full_disk_the_bundle_stays_as_it_is(bundle, made, monkeypatch):
    """Files that no manifest lists would keep an export from replacing the bundle, too."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = content(bundle)
    monkeypatch.setattr(bundles, "save_manifest", full)
    with pytest.raises(OSError, match="No space left"):
        replace_variant(bundle, *made)
    assert content(bundle) == before
