"""Gives a bundle on disk a draft head."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import tokenizers

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET, Bundle, Precision, Role
from edgespec.export.heads.taps import add_taps
from edgespec.export.heads.writer import HeadWriter
from edgespec.export.role import Progress
from edgespec.export.sources.hub import source_name
from edgespec.models.heads.eagle3 import TargetSizes, load_head
from edgespec.models.heads.head import Head, HeadCheckpoint

PRECISIONS = ("int4", "int8", "fp16", "fp32")
"""Precisions of a head's weights."""

_BLOCKS = (128, 64, 32)


def copy_bundle(source: Bundle, folder: Path) -> None:
    """Copies a bundle without its draft to an empty folder.

    Files are linked where the file system allows it, so that weights take no room twice.
    """
    old = source.manifest
    new = replace(old, roles={TARGET: source.target})
    names = {*bundles.used_files(new)}
    for name in names:
        _link(source.path / name, folder / name)
    files = {name: entry for name, entry in old.files.items() if name in names}
    bundles.save_manifest(folder, replace(new, files=files))


def copy_with_taps(source: Bundle, folder: Path, taps: Sequence[int]) -> None:
    """Copies a bundle without its draft to an empty folder, and lets its target return features.

    Raises:
        ExportError: if an older version exported the target.
    """
    copy_bundle(source, folder)
    target = source.target
    stages = add_taps(folder, target.stages, taps, target.hidden_size)
    target = replace(target, stages=stages, taps=tuple(taps))
    manifest = replace(source.manifest, roles={TARGET: target}, variants=())
    files = bundles.describe_files(folder)
    kept = {name: files[name] for name in bundles.used_files(manifest)}
    bundles.save_manifest(folder, replace(manifest, files=kept))


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
        ExportError: if an older version exported the target.
        UnsupportedModelError: if the head needs something that is not implemented.
    """
    manifest = bundles.load(folder).manifest
    target = manifest.roles[TARGET]
    checkpoint = load_head(path, sizes_of(target, folder))
    taps, size = checkpoint.head.taps, target.hidden_size
    target = replace(target, stages=add_taps(folder, target.stages, taps, size), taps=taps)
    variants = tuple(
        replace(each, stages=add_taps(folder, each.stages, taps, size))
        for each in manifest.variants
    )
    precision = _precision(checkpoint.head, weights, target.precision.kv)
    with HeadWriter(folder, target, checkpoint, precision, progress) as writer:
        head = writer.write()
    bundles.save_manifest(
        folder,
        replace(
            manifest,
            roles={TARGET: target, DRAFT: head},
            provenance={**manifest.provenance, DRAFT: source_name(path)},
            files=bundles.describe_files(folder),
            variants=variants,
        ),
    )
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
    )


def _precision(head: Head, weights: str, kv: str) -> Precision:
    if weights not in ("int4", "int8"):
        return Precision(weights, weights, kv, 0)
    layer = head.layer
    linears = (head.fusion.fc, *layer.attention.linears, *layer.mlp.linears, head.lm_head)
    widths = {each.in_features for each in linears}
    fitting = [block for block in _BLOCKS if all(width % block == 0 for width in widths)]
    return Precision(weights, weights, kv, (*fitting, _BLOCKS[-1])[0], scales="fp16")


def _link(source: Path, copy: Path) -> None:
    with suppress(OSError):  # another file system, or one without links
        copy.hardlink_to(source.resolve())
        return
    shutil.copyfile(source, copy)
