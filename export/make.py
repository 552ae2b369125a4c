"""Makes bundles: of a target, and perhaps of a model or a head that drafts for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edgespec import bundle as bundles
from edgespec.bundle import MANIFEST, Bundle
from edgespec.bundle.options import ExportOptions
from edgespec.export.calibration.calibrate import Calibrate
from edgespec.export.destination import replacing
from edgespec.export.exporter import ExportReport, attach_model, write_bundle
from edgespec.export.heads.attach import copy_bundle
from edgespec.export.heads.draft_head import DraftHead
from edgespec.export.role import Progress
from edgespec.export.sources.hub import resolve_checkpoint
from edgespec.models import Checkpoint, load_checkpoint

NO_DRAFT = "none"
"""The draft of a bundle that gets none, not even the head that the target's checkpoint holds."""


@dataclass(frozen=True)
class ReadyTarget:
    """A target whose graph is there, or comes from another program.

    Attributes:
        path: what is read of it; None: another program makes it.
        write: writes a bundle of it to an empty folder.
    """

    path: Path | None
    write: Callable[[Path], ExportReport]


@dataclass(frozen=True)
class PartialBundle:
    """A bundle with all its models, which is not in its place yet.

    Attributes:
        folder: the hidden folder in which it is, to which files may be added.
        report: how it was made.
    """

    folder: Path
    report: ExportReport


def make(
    target: str | Path,
    output: str | Path,
    draft: str | Path | None = None,
    options: ExportOptions | None = None,
    progress: Progress = lambda role, done, total: None,
    calibration: Calibrate | None = None,
) -> ExportReport:
    """Makes a bundle of a model; if that fails, nothing is left behind.

    Args:
        target: the model: a checkpoint's folder, a GGUF file, or owner/name or owner/name:FILE.gguf
            on the Hub; or a bundle, whose target is taken as it is.
        output: folder to create.
        draft: what drafts for it, in any of these forms but a bundle: a smaller model, or a draft
            head; None: the head that the target's checkpoint holds, if it does; `NO_DRAFT`:
            nothing.
        options: options of the export; None for the defaults.
        progress: called with the progress.
        calibration: see `write_bundle`.

    Raises:
        CheckpointError: if a checkpoint is damaged or not supported.
        ExportError: if a model cannot be downloaded, or `output` exists or cannot be written.
        InputError: if an option does not suit the model, or the draft does not suit the target.
    """
    if draft not in (None, NO_DRAFT):
        draft = resolve_checkpoint(str(draft))
    source = resolve_checkpoint(str(target))
    with partial_bundle(source, Path(output), draft, options, progress, calibration) as made:
        return made.report


@contextmanager
def partial_bundle(
    target: Path | ReadyTarget,
    output: Path,
    draft: str | Path | None = None,
    options: ExportOptions | None = None,
    progress: Progress = lambda role, done, total: None,
    calibration: Calibrate | None = None,
) -> Iterator[PartialBundle]:
    """Makes a bundle as `make`, whose folder gets its name at the end of the `with`.

    If the block raises an exception, nothing is left behind.

    Args:
        target: see `make`; all is on this machine already.
        output: see `make`.
        draft: see `make`.
        options: see `make`.
        progress: see `make`.
        calibration: see `write_bundle`.

    Raises:
        EdgespecError: see `make`.
    """
    options = options or ExportOptions()
    wanted = None if draft is None or draft == NO_DRAFT else Path(draft)
    source: Checkpoint | ReadyTarget
    head = None
    if isinstance(target, ReadyTarget):
        source = target
    else:
        is_bundle = (target / MANIFEST).is_file()
        readable = target if is_bundle else load_checkpoint(target)  # once: it takes a while
        if draft != NO_DRAFT:
            head = DraftHead.of(readable, wanted, options.draft_precision)
        if isinstance(readable, Checkpoint):
            source = readable
        else:
            source = ReadyTarget(target, partial(_copy, target))
    model = wanted if head is None else None
    sources = [each for each in (source.path, wanted) if each is not None]
    with replacing(output, options.overwrite, sources) as folder:
        if isinstance(source, Checkpoint):
            report = write_bundle(source, folder, model, options, progress, calibration)
        else:
            report = source.write(folder)
            if model is not None:
                attach_model(folder, model, options, progress, calibration)
        if head is not None:
            head.attach(folder, progress)
            report = replace(report, head=str(head))
        yield PartialBundle(folder, report)
    if isinstance(source, Checkpoint):  # else files are copies
        bundles.keep_verified(output)


def _copy(bundle: Path, folder: Path) -> ExportReport:
    """Copies a bundle's target to an empty folder; no checkpoint is read."""
    manifest = copy_bundle(bundles.load(bundle), folder)
    return ExportReport(0, Bundle(folder, manifest).size)
