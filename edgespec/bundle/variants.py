"""Replacing a model's variant in a bundle on disk, in one step."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from edgespec import bundle as bundles
from edgespec.bundle import Bundle, Variant


def replace_variant(bundle: Bundle, variant: Variant, folder: Path | None = None) -> Bundle:
    """Adds a variant to a bundle or replaces it, and deletes files that are no longer used.

    Args:
        bundle: bundle to change on disk.
        variant: variant of one of the bundle's roles.
        folder: folder with new files, which are moved into the bundle; their names must be new.

    Returns:
        The changed bundle.
    """
    path, old = bundle.path, bundle.manifest
    new = {} if folder is None else bundles.describe_files(folder)
    place = (variant.role, variant.name)
    others = (each for each in old.variants if (each.role, each.name) != place)
    manifest = replace(old, variants=(*others, variant), files=old.files | new)
    used = set(bundles.used_files(manifest))
    unused = set(bundles.used_files(old)) - used
    files = {name: entry for name, entry in manifest.files.items() if name not in unused}
    manifest = replace(manifest, files=files)
    with tempfile.TemporaryDirectory(prefix=bundles.SAVING, dir=path) as saving:
        bundles.save_manifest(Path(saving), manifest)
        # Writing fails on a full disk; from here on files are only moved.
        for name in new:
            ((folder or path) / name).replace(path / name)
        (Path(saving) / bundles.MANIFEST).replace(path / bundles.MANIFEST)
    for name in unused:
        (path / name).unlink(missing_ok=True)
    return replace(bundle, manifest=manifest)
