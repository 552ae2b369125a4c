"""What `edgespec export` does with its arguments, for a checkpoint, a bundle or an ONNX file."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import partial
from pathlib import Path

from rich.filesize import decimal

from edgespec import bundle as bundles
from edgespec.bundle import MANIFEST, Bundle
from edgespec.bundle.sublayers import parse
from edgespec.cli.arguments import given
from edgespec.cli.export_values import AUTO, BUILT_IN, NONE
from edgespec.cli.terminal import tell
from edgespec.errors import InputError
from edgespec.export import (
    NO_DRAFT,
    DraftHead,
    ExportOptions,
    PartialBundle,
    Progress,
    ReadyTarget,
    check_skipped,
    find_onnx,
    partial_bundle,
    resolve_checkpoint,
)
from edgespec.models import load_checkpoint
from edgespec.models.heads.opening import is_head
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.vocabulary.mapping import VocabularyMap
from edgespec.store.choosing import checkpoint_name
from edgespec.store.progress import role_bars
from edgespec.tuning.adopting import adopt
from edgespec.tuning.calibrating import TextCalibration
from edgespec.tuning.quality import HeldOutText
from edgespec.tuning.skip_runs import describe_skips, scan
from edgespec.tuning.texts import calibration_text

_DEFAULTS = {field.name: field.default for field in fields(ExportOptions)}
# Fields of `ExportOptions` that the export of a head has, too, or that no argument is named after.
_ELSEWHERE = ("draft_precision", "overwrite", "skip_sets")
# Arguments that only the export of a checkpoint uses, and their defaults.
_OF_CHECKPOINTS: dict[str, object] = {
    **{name: value for name, value in _DEFAULTS.items() if name not in _ELSEWHERE},
    "layer_skip": NONE,
    "calibrate": None,
    "quality": False,
}
_log = logging.getLogger(__name__)


def export(arguments: argparse.Namespace) -> int:
    """Exports, and prints the sizes, the quality and the result of a search."""
    _refuse_alone(arguments)
    arguments.checkpoint = checkpoint_name(arguments.checkpoint)
    draft = _draft(arguments)
    if (Path(arguments.checkpoint) / MANIFEST).is_file():
        if draft is None:
            raise InputError(
                f"{arguments.checkpoint} is a bundle already: give a model or head as --draft, to "
                "have a copy with it, or export the checkpoint that it was made from"
            )
        return _attach(arguments, bundles.load(Path(arguments.checkpoint)), draft)
    graph = None if arguments.via else find_onnx(arguments.checkpoint)
    if arguments.via or graph is not None:
        return _adopt(arguments, graph, draft)
    _options(arguments)  # checked, as is the text, before what takes long
    text, _ = calibration_text(_own_text(arguments))
    target = resolve_checkpoint(arguments.checkpoint)
    if arguments.layer_skip == AUTO:
        check_skipped(load_checkpoint(target))
    quality = None
    with role_bars() as show:
        held_out = None
        if arguments.quality:
            held_out = HeldOutText(target, _own_text(arguments), partial(show, "quality"))
        # An older bundle is replaced only after all steps, any of which may fail.
        with _making(arguments, target, draft, show) as made:
            folder = made.folder
            if arguments.layer_skip == AUTO:
                scan(bundles.load(folder), text, partial(show, "skips"))
            if held_out is not None:
                quality = held_out.quality(folder)
            tokenizer = Tokenizer.from_folder(folder)
            loaded = bundles.load(folder)
            fault = None
            if loaded.target.writes:
                tokenizer.require_messages_shown(Path(arguments.checkpoint))
                fault = tokenizer.chat_fault()
            vocabularies = VocabularyMap.of(loaded, tokenizer)
    report = made.report
    share = report.bundle_bytes / report.source_bytes
    tell(
        f"{arguments.output}: {decimal(report.bundle_bytes)}, "
        f"{share:.0%} of the checkpoints' {decimal(report.source_bytes)}"
    )
    _warn_of_template(fault, arguments.checkpoint)
    bundle = bundles.load(arguments.output)
    role = bundle.target
    found = describe_skips(bundle) if arguments.layer_skip != NONE else None
    if role.embedding is not None:
        tell(f"makes embeddings of {role.vector_size} numbers: {role.embedding}")
    if role.ranking is not None:
        tell(f"ranks texts by {role.ranking}")
    for each in (*report.kept, quality, vocabularies, report.head, found):
        if each is not None and each != "":
            tell(each)
    return 0


def _calibration(
    arguments: argparse.Namespace, show: Callable[[str, int, int], None]
) -> TextCalibration | None:
    if arguments.calibrate is None:
        return None
    return TextCalibration(_own_text(arguments), partial(show, "reading"))


def _own_text(arguments: argparse.Namespace) -> Path | None:
    """Returns the file with the user's text for calibration, if there is one."""
    return None if arguments.calibrate == BUILT_IN else arguments.calibrate


def _attach(arguments: argparse.Namespace, source: Bundle, draft: Path) -> int:
    """Copies a bundle with another draft."""
    is_model = DraftHead.of(source.path, draft, arguments.draft_precision) is None
    _refuse_for_exported(arguments, draft if is_model else None)
    with role_bars() as show, _making(arguments, source.path, draft, show) as made:
        head = made.report.head
    tell(f"{arguments.output}: {decimal(bundles.load(arguments.output).size)}")
    if head:
        tell(head)
    return 0


def _adopt(arguments: argparse.Namespace, graph: Path | None, draft: Path | None) -> int:
    """Takes over a model that another program exported as ONNX, perhaps with a draft model."""
    if draft is not None and is_head(draft):
        raise InputError(
            f"{draft} is a draft head, which reads hidden rows that {arguments.checkpoint} does "
            "not give, as another program exported it: give the checkpoint that it was made from"
        )
    _refuse_for_exported(arguments, draft)
    target = ReadyTarget(graph, partial(adopt, graph, arguments.checkpoint))
    with role_bars() as show, _making(arguments, target, draft, show) as made:
        tokenizer = Tokenizer.from_folder(made.folder)
        tokenizer.require_messages_shown(Path(arguments.checkpoint))
        fault = tokenizer.chat_fault()
    tell(f"{arguments.output}: {decimal(made.report.bundle_bytes)}")
    _warn_of_template(fault, arguments.checkpoint)
    return 0


def _making(
    arguments: argparse.Namespace, target: Path | ReadyTarget, draft: Path | None, show: Progress
) -> AbstractContextManager[PartialBundle]:
    """Begins a bundle with the options of the command."""
    wanted = NO_DRAFT if arguments.draft == NONE else draft
    calibration = _calibration(arguments, show)
    return partial_bundle(target, arguments.output, wanted, _options(arguments), show, calibration)


def _refuse_for_exported(arguments: argparse.Namespace, draft: Path | None) -> None:
    """Refuses options that have no effect on a model that is exported already.

    Args:
        arguments: with the options.
        draft: checkpoint of a draft model, which may be calibrated; None: there is none.
    """
    for name, default in _OF_CHECKPOINTS.items():
        if getattr(arguments, name) != default and (draft is None or name != "calibrate"):
            raise InputError(
                f"--{name.replace('_', '-')} is given, but {arguments.checkpoint} is exported "
                "already: leave it out, or give the checkpoint"
            )
    calibration_text(_own_text(arguments))  # before what takes long


def _warn_of_template(fault: str | None, checkpoint: str) -> None:
    if fault is not None:
        _log.warning(
            "the chat template is broken (%s): repair it in %s and export again; until then, chat "
            "may fail, but run works with --raw",
            fault,
            checkpoint,
        )


def _options(arguments: argparse.Namespace) -> ExportOptions:
    """Returns the options of the export itself."""
    chosen = given(arguments, ExportOptions)
    if arguments.layer_skip not in (AUTO, NONE):
        chosen["skip_sets"] = tuple(arguments.layer_skip.split("/"))
        for each in chosen["skip_sets"]:
            parse(each)  # checked before a checkpoint is read
    return ExportOptions(**chosen)


def _draft(arguments: argparse.Namespace) -> Path | None:
    """Returns the checkpoint or head to draft with; None if none was named."""
    if arguments.draft in (None, NONE):
        return None
    if find_onnx(arguments.draft) is not None:
        raise InputError(
            f"{arguments.draft} is an ONNX export, which can only be a target: give the checkpoint "
            "that it was made from as --draft"
        )
    return resolve_checkpoint(checkpoint_name(arguments.draft))


def _refuse_alone(arguments: argparse.Namespace) -> None:
    """Refuses options that have no effect without another one."""
    if arguments.draft_precision and arguments.draft in (None, NONE):
        raise InputError("--draft-precision does nothing without --draft: add it, or leave it out")
