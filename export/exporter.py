"""Exports checkpoints to the files of a bundle, one tensor at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tokenizers

import edgespec
from edgespec import bundle
from edgespec.bundle.options import ExportOptions
from edgespec.bundle.sublayers import Sublayers, parse
from edgespec.errors import InputError
from edgespec.export.calibration.calibrate import Calibrate
from edgespec.export.role import Progress, RoleWriter, sublayer_records
from edgespec.export.sources.hub import source_name
from edgespec.export.sources.vocabulary import read_tokenizer
from edgespec.models import Checkpoint, Decoder, load_checkpoint
from edgespec.models.layers.recurrent import Recurrent


@dataclass(frozen=True)
class ExportReport:
    """The result of an export.

    Attributes:
        source_bytes: bytes of the checkpoints' weights.
        bundle_bytes: bytes of the bundle, without a draft that was added to it.
        kept: a line for each role whose checkpoint is quantized: what was kept of it.
        head: a line about the draft head; empty if there is none.
    """

    source_bytes: int
    bundle_bytes: int
    kept: tuple[str, ...] = ()
    head: str = ""


def write_bundle(
    target: Checkpoint,
    folder: Path,
    draft: Path | None,
    options: ExportOptions,
    progress: Progress,
    calibration: Calibrate | None,
) -> ExportReport:
    """Writes a bundle to a folder, to which the caller may add files before moving it in place.

    Args:
        target: the target's checkpoint.
        folder: empty folder to write to; its content is incomplete if this fails.
        draft: checkpoint folder of a smaller model; None: no draft. Its tokenizer is added to the
            bundle where its tokens are not the target's.
        options: options of the export; `overwrite` is ignored.
        progress: called with the progress.
        calibration: runs models on a text before their weights are quantized; None: quantization
            weighs all inputs of a matrix alike, and a fixed rule says which matrices get 8 bits.

    Raises:
        CheckpointError: if a checkpoint is damaged or not supported.
        InputError: if an option does not suit the model.
    """
    if draft is not None:
        check_drafted(target, str(target.path))
    if options.skip_sets:
        check_skipped(target)
    skips = _skip_sets(options.skip_sets, target.decoder)
    drafting = None if draft is None else _draft(draft)
    source, tokens = read_tokenizer(target)
    for name, text in {**target.tokenizer_files, "tokenizer.json": source}.items():
        (folder / name).write_bytes(text.encode())
    writer = RoleWriter(folder, options, calibration, progress)
    role, line = writer.write(bundle.TARGET, target, tokens)
    provenance = {"edgespec": edgespec.__version__, **_origin(bundle.TARGET, target)}
    files = bundle.describe_files(folder)
    manifest = bundle.Manifest(
        bundle.FORMAT,
        {bundle.TARGET: role},
        tuple(target.tokenizer_files),
        provenance,
        files,
        skips,
        target.sampling,
    )
    lines = [line]
    nbytes = target.tensors.nbytes
    if drafting is not None:
        manifest, line = _with_draft(writer, manifest, drafting)
        lines.append(line)
        nbytes += drafting.tensors.nbytes
    bundle.save_manifest(folder, manifest)
    bundle.keep_verified(folder)
    size = sum(entry.size for entry in manifest.files.values())
    return ExportReport(nbytes, size, tuple(filter(None, lines)))


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
    manifest = bundle.load(folder).manifest
    check_drafted(manifest.roles[bundle.TARGET])
    checkpoint = _draft(draft)
    writer = RoleWriter(folder, options, calibration, progress)
    bundle.save_manifest(folder, _with_draft(writer, manifest, checkpoint)[0])
    bundle.keep_verified(folder)
    return checkpoint.tensors.nbytes


def check_drafted(target: bundle.Role | Checkpoint, name: str = "the bundle") -> None:
    """Checks that a target can have a draft.

    Raises:
        InputError: if it writes no text; calls it by this name.
    """
    if not target.writes:
        raise InputError(
            f"{name} makes {_made(target)}, and no text that a draft could be for: give a model "
            "that writes text, or leave out the draft"
        )


def _made(model: bundle.Role | Checkpoint) -> str:
    """Returns what a model makes that writes no text."""
    return "embeddings" if model.ranking is None else "scores of texts"


def check_skipped(target: Checkpoint) -> None:
    """Checks that drafts can leave out layers of a target.

    Raises:
        InputError: if it makes embeddings, or has recurrent layers.
    """
    check_drafted(target, str(target.path))
    if any(isinstance(each, Recurrent) for each in target.decoder.parts):
        raise InputError(
            f"{target.path} has recurrent layers, whose states a layer-skip draft "
            "would falsify: export it without skip_sets (--layer-skip)"
        )


def _draft(path: Path) -> Checkpoint:
    """Opens the checkpoint of a draft model."""
    draft = load_checkpoint(path)
    if not draft.writes:
        raise InputError(
            f"{draft.path} makes {_made(draft)}, and a draft has to write text: give another "
            "draft, or none"
        )
    return draft


def _with_draft(
    writer: RoleWriter, manifest: bundle.Manifest, draft: Checkpoint
) -> tuple[bundle.Manifest, str]:
    """Writes a draft model; returns the manifest with it, and the second result of `write`."""
    folder = writer.folder
    name = bundle.DRAFT
    own = ""
    source, tokens = read_tokenizer(draft)
    if tokens != tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab():
        own = bundle.DRAFT_TOKENIZER
        (folder / own).write_bytes(source.encode())
    role, line = writer.write(name, draft, tokens, own)
    roles = {**manifest.roles, name: role}
    origin = manifest.provenance | _origin(name, draft)
    written = set(bundle.used_files(replace(manifest, roles=roles))) - manifest.files.keys()
    files = manifest.files | {each: bundle.describe_file(folder / each) for each in sorted(written)}
    return replace(manifest, roles=roles, provenance=origin, files=files), line


def _origin(name: str, checkpoint: Checkpoint) -> dict[str, str]:
    """Returns where a role is from, for the provenance."""
    made = {name: source_name(checkpoint.path)}
    quantized = checkpoint.quantization
    return made | ({bundle.source_format(name): quantized} if quantized else {})


def _skip_sets(texts: Sequence[str], decoder: Decoder) -> tuple[bundle.SkipSet, ...]:
    """Returns the skip sets that a user named.

    Raises:
        InputError: if there is no such sublayer, or one leaves out attention whose keys and values
            are still read.
    """
    layout = Sublayers(sublayer_records(decoder))
    found = []
    for text in texts:
        skipped = layout.named(parse(text))
        if bereft := layout.bereft(skipped):
            raise InputError(
                f"skip set {layout.describe(skipped)}: {layout.describe(bereft)} reads the keys "
                f"and values of {layout[bereft[0]].source}a: leave both out, or neither"
            )
        found.append(bundle.SkipSet(skipped))
    return tuple(found)
