"""Gives a bundle on disk a draft head."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import tokenizers

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET, Bundle, FileEntry, Manifest, Precision, Role
from edgespec.errors import ExportError
from edgespec.export.exporter import check_drafted
from edgespec.export.formats.tile_formats import BLOCK
from edgespec.export.heads.identity import bundle_weights
from edgespec.export.heads.taps import add_taps
from edgespec.export.heads.writer import write_head
from edgespec.export.role import Progress
from edgespec.export.sources.hub import source_name
from edgespec.models.heads.checkpoint import HeadCheckpoint, TargetSizes
from edgespec.models.heads.opening import load_head

PRECISIONS = ("int4", "int8", "fp16", "fp32")
"""Precisions of a head's weights."""


def copy_bundle(source: Bundle, folder: Path) -> Manifest:
    """Copies a bundle without its draft to an empty folder; returns the copy's manifest.

    Files are linked where the file system allows it, so that weights take no room twice.
    """
    old = source.manifest
    new = replace(old, roles={TARGET: source.target})
    names = {*bundles.used_files(new)}
    for name in names:
        _link(source.path / name, folder / name)
    new = replace(new, files={name: old.files[name] for name in names})
    bundles.save_manifest(folder, new)
    return new


def attach_head(folder: Path, path: Path, weights: str, progress: Progress) -> HeadCheckpoint:
    """Adds a head as the draft of a bundle that has none.

    Args:
        folder: folder of the bundle, whose files may be replaced.
        path: folder of the head.
        weights: precision of the head's weights, one of `PRECISIONS`.
        progress: see `Progress`.

    Returns:
        The head.

    Raises:
        CheckpointError: if the head is damaged, or belongs to another target.
        ExportError: if another program exported the target.
        InputError: if the target makes embeddings.
        UnsupportedModelError: if the head needs something that is not implemented.
    """
    manifest = bundles.load(folder).manifest
    check_drafted(manifest.roles[TARGET])
    checkpoint = load_head(path, sizes_of(manifest.roles[TARGET], folder))
    manifest = _tapped(folder, manifest, checkpoint.head.taps)
    target = manifest.roles[TARGET]
    precision = _precision(weights, target.precision.kv)
    head = write_head(folder, target, checkpoint, precision, progress)
    manifest = replace(
        manifest,
        roles={TARGET: target, DRAFT: head},
        provenance={**manifest.provenance, DRAFT: source_name(path)},
    )
    written = set(bundles.used_files(manifest)) - manifest.files.keys()
    files = manifest.files | _entries(folder, written)
    bundles.save_manifest(folder, replace(manifest, files=files))
    bundles.keep_verified(folder)
    return checkpoint


def sizes_of(target: Role, folder: Path) -> TargetSizes:
    """Returns what a head of a target must agree with; the folder has the tokenizer."""
    tokens = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return TargetSizes(
        layers=target.layers,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        tokens=max(tokens.values()) + 1,
        inv_freq=target.inv_freq,
        pools=target.native.pools,
        weights=None if target.native.adopted else partial(bundle_weights, target, folder),
    )


def _tapped(folder: Path, manifest: Manifest, taps: Sequence[int]) -> Manifest:
    """Lets the target of a bundle return features; returns its manifest with the new graph."""
    target = manifest.roles[TARGET]
    if target.native.adopted:
        raise ExportError(
            f"{folder}: another program exported the target's graph, which does not give the "
            "hidden rows that a draft head reads: export the original checkpoint"
        )
    graph = target.native.graph
    add_taps(folder, graph, taps, target.hidden_size)
    return replace(
        manifest,
        roles={**manifest.roles, TARGET: replace(target, taps=tuple(taps))},
        files=manifest.files | _entries(folder, [graph]),
    )


def _entries(folder: Path, names: Iterable[str]) -> dict[str, FileEntry]:
    """Returns the entries of new files. The weights have theirs, and are not hashed again."""
    return {name: bundles.describe_file(folder / name) for name in sorted(names)}


def _precision(weights: str, kv: str) -> Precision:
    return Precision(weights, weights, kv, BLOCK if weights in ("int4", "int8") else 0)


def _link(source: Path, copy: Path) -> None:
    with suppress(OSError):  # another file system, or one without links
        copy.hardlink_to(source.resolve())
        return
    shutil.copyfile(source, copy)
