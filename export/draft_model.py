"""Gives a bundle on disk a draft model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tokenizers

from edgespec import bundle
from edgespec.export.calibration.calibrate import Calibrate
from edgespec.export.embeddings import check_draft, check_drafted
from edgespec.export.exporter import ExportOptions, candidates
from edgespec.export.precisions import SOURCE, asked_precision, rounding
from edgespec.export.role import Progress, RoleWriter
from edgespec.export.sources.hub import source_name
from edgespec.export.sources.vocabulary import end_ids, read_tokenizer
from edgespec.models import load_checkpoint


def attach_model(
    folder: Path,
    draft: Path,
    options: ExportOptions,
    progress: Progress,
    calibration: Calibrate | None,
) -> int:
    """Adds a checkpoint as the draft of a bundle that has none.

    Args:
        folder: folder of the bundle.
        draft: folder of the checkpoint.
        options: options of the export; those of the target are ignored.
        progress: called with the progress.
        calibration: see `write_bundle`.

    Returns:
        The bytes of the checkpoint's weights.

    Raises:
        CheckpointError: if the checkpoint is damaged or not supported.
        InputError: if an option does not suit it, or it or the target makes embeddings.
    """
    name, manifest = bundle.DRAFT, bundle.load(folder).manifest
    check_drafted(manifest.roles[bundle.TARGET])
    checkpoint = load_checkpoint(draft)
    check_draft(checkpoint)
    source, tokens = read_tokenizer(checkpoint)
    with (
        rounding(name, checkpoint, options, calibration, folder) as (precision, rounded),
        RoleWriter(
            folder, name, checkpoint, precision, candidates(tokens), progress, rounded
        ) as writer,
    ):
        role = writer.write(texts=True)
        as_stored = asked_precision(name, checkpoint, options) == SOURCE
        role = replace(role, native=writer.write_native(as_stored))
    own = ""
    if tokens != tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab():
        own = bundle.DRAFT_TOKENIZER
        (folder / own).write_bytes(source.encode())
    role = replace(role, eos_ids=end_ids(checkpoint, tokens), tokenizer=own)
    bundle.save_manifest(
        folder,
        replace(
            manifest,
            roles={**manifest.roles, name: role},
            provenance={**manifest.provenance, name: source_name(draft)},
            files=bundle.describe_files(folder),
        ),
    )
    return checkpoint.tensors.nbytes
