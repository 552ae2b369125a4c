"""What a bundle on disk says of a model's variants, changed in one step."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from edgespec import bundle as bundles
from edgespec.bundle import Bundle, Variant


def replace_variant(bundle: Bundle, variant: Variant, folder: Path | None = None) -> Bundle:
    """Have a bundle list a variant in place of what it said of it; files that nobody uses go.

    Args:
        bundle: to change, on disk.
        variant: of a role that the bundle has.
        folder: new files, which are moved from there; none of them has the name of an old one.

    Returns:
        The bundle as it is then.
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
        # On a full disk that fails; from here on files only move.
        for name in new:
            ((folder or path) / name).replace(path / name)
        (Path(saving) / bundles.MANIFEST).replace(path / bundles.MANIFEST)
    for name in unused:
        (path / name).unlink(missing_ok=True)
    return replace(bundle, manifest=manifest)
