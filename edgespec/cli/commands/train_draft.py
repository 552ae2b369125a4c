"""`edgespec train-draft`: trains a draft head for a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from edgespec import bundle as bundles
from edgespec.cli import INTERRUPTED
from edgespec.cli.arguments import MODEL_HELP, add_options, given
from edgespec.cli.interrupts import noted_interrupts
from edgespec.cli.models import chosen
from edgespec.cli.terminal import tell
from edgespec.errors import InputError
from edgespec.store.progress import bars
from edgespec.training.options import TrainingOptions, require_torch
from edgespec.training.shape import CONFIG, check_taps

if TYPE_CHECKING:
    from edgespec.training.training import Report, Status

_NAMES = [each.name for each in fields(TrainingOptions)]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments; the defaults are those of `TrainingOptions`."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP.partition(" (default")[0])
    parser.add_argument(
        "--text",
        type=Path,
        nargs="+",
        default=(),
        metavar="FILE",
        help=".jsonl files with a prompt in each line (field prompt or turns), or UTF-8 texts such "
        "as the model will read and write (default: built-in prompts of code, chats, prose, JSON "
        "and calls of tools)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="HEAD",
        help="folder of the head; a training that was stopped goes on",
    )
    add_options(parser, TrainingOptions, *_NAMES)


def execute(arguments: argparse.Namespace) -> int:
    """Trains, and prints a line of JSON with what was reached."""
    require_torch()
    options = TrainingOptions(**given(arguments, TrainingOptions))
    bundle = bundles.load(chosen(arguments))
    if options.init is not None:
        from edgespec.store.model_ref import find_model
        from edgespec.training.given_head import GivenHead

        path = find_model(options.init).fetched().path
        assert path is not None, "it was fetched"
        options = replace(GivenHead(path, bundle).chosen(options), init=str(path))
    taps = options.tapped(bundle.target.layers)
    check_taps(taps, bundle.target.layers)
    options = replace(options, taps=taps)
    output: Path = arguments.output

    from edgespec.training.device import TorchDevice
    from edgespec.training.target_model import TorchTarget
    from edgespec.training.target_texts import TargetWriter
    from edgespec.training.texts import texts_of
    from edgespec.training.training import WORK, Training

    known = any((output / name).exists() for name in (CONFIG, WORK))
    if not known and output.exists() and any(output.iterdir()):
        raise InputError(f"{output} is not empty and not a head: give another folder")
    # a number of bytes by now
    device = TorchDevice.of(options.device, int(options.memory or 0))
    with _shown() as report, noted_interrupts() as stop:
        target = TorchTarget(bundle, device, taps)
        write = TargetWriter(target, options.window).write if options.generate else None
        texts = texts_of(arguments.text, target.tokenizer, options.window, write)
        output.mkdir(parents=True, exist_ok=True)
        training = Training(target, texts, options, output, report, stop)
        training.run()
    tell(json.dumps({"head": str(output), **training.facts()}))
    return INTERRUPTED if stop() else 0


@contextmanager
def _shown() -> Iterator[Report]:
    """Shows what a training reports on stderr, if that is a terminal."""
    columns = SpinnerColumn(), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with bars(*columns, TimeRemainingColumn(), transient=True) as progress:
        bar = progress.add_task("loading", total=None)

        def show(status: Status) -> None:
            progress.update(bar, description=_line(status))
            if status.share is not None:
                progress.update(bar, total=1.0, completed=status.share)

        yield show


def _line(status: Status) -> str:
    progress = status.progress
    parts = [status.doing]
    if progress.steps:
        parts.append(f"{progress.tokens:,} tokens, loss {progress.loss:.3f}")
    if progress.acceptance:
        parts.append("accepted " + " ".join(f"{share:.0%}" for share in progress.acceptance))
    if status.promised is not None:
        parts.append(f"promises {status.promised:.2f}x plain decoding")
    if status.tokens_per_second:
        parts.append(f"{status.tokens_per_second:.0f} tokens/s")
    return ", ".join(parts)
