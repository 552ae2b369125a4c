"""`edgespec export`: a checkpoint in, a bundle out."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.progress import TimeRemainingColumn as TimeRemaining

from edgespec import sublayers
from edgespec.export import (
    BLOCK_SIZES,
    KV_PRECISIONS,
    PRECISIONS,
    ExportOptions,
    export_bundle,
    resolve_checkpoint,
)

_DEFAULTS = {field.name: field.default for field in fields(ExportOptions)}
_AUTO = "auto"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; the defaults are those of `ExportOptions`."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder, or a Hub id owner/name")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="BUNDLE", help="the folder to make"
    )
    parser.add_argument(
        "--draft", metavar="CHECKPOINT", help="a smaller model with the same tokenizer"
    )
    _add(parser, "precision", PRECISIONS, "of the target's weights")
    _add(parser, "draft_precision", PRECISIONS, "of the draft's (default: the target's)")
    _add(
        parser, "lm_head_precision", PRECISIONS, "of the output projection (default: the weights')"
    )
    _add(parser, "kv_precision", KV_PRECISIONS, "of the KV cache")
    parser.add_argument(
        "--block-size", choices=(_AUTO, *map(str, sorted(BLOCK_SIZES))), default=_AUTO,
        help="weights per scale; auto: the largest that divides every row (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--cut-layers", type=_layers, default=_DEFAULTS["cut_layers"], metavar="N[,N...]",
        help="end a stage before these layers, so that `run --place` can put the two sides on "
        "different devices",
    )  # fmt: skip
    parser.add_argument(
        "--layer-skip", type=_skip_sets, default=(), dest="skip_sets", metavar="SETS",
        help="let drafts leave out these sublayers of the target: 4-5 for two layers, 4m for an "
        "MLP, 4a for an attention, commas between them and / between sets",
    )  # fmt: skip
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the bundle that is there already"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Export, and print sizes before and after."""
    values = {name: getattr(arguments, name) for name in _DEFAULTS}
    size = arguments.block_size
    options = ExportOptions(**values | {"block_size": None if size == _AUTO else int(size)})
    target = resolve_checkpoint(arguments.checkpoint)
    draft = None if arguments.draft is None else resolve_checkpoint(arguments.draft)
    with _progress_bars() as show:
        report = export_bundle(target, arguments.output, draft, options, show)
    share = report.bundle_bytes / report.source_bytes
    print(
        f"{arguments.output}: {decimal(report.bundle_bytes)}, "
        f"{share:.0%} of the checkpoints' {decimal(report.source_bytes)}"
    )
    return 0


def _add(parser: argparse.ArgumentParser, name: str, choices: tuple[str, ...], text: str) -> None:
    default = _DEFAULTS[name]
    shown = "" if default is None else f" (default: {default})"
    flag = f"--{name.replace('_', '-')}"
    parser.add_argument(flag, choices=choices, default=default, help=text + shown)


def _skip_sets(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(sublayers.parse(part) for part in text.split("/"))


def _layers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


@contextmanager
def _progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """One bar a role on stderr if that is a terminal; nothing if not."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description:7}"), BarColumn(), TaskProgressColumn(), TimeRemaining()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bars: dict[str, TaskID] = {}

        def show(role: str, done: int, total: int) -> None:
            if role not in bars:
                bars[role] = progress.add_task(role, total=total)
            progress.update(bars[role], completed=done)

        yield show
