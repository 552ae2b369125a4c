"""`edgespec train-draft`: trains a draft head for a bundle's target."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from edgespec import bundle as bundles
from edgespec.cli import INTERRUPTED
from edgespec.cli.arguments import add_options, given
from edgespec.cli.interrupts import noted_interrupts
from edgespec.cli.terminal import tell
from edgespec.errors import InputError
from edgespec.llm.load.options import LoadOptions
from edgespec.store.progress import bars
from edgespec.training.options import TrainingOptions, require_torch
from edgespec.training.shape import CONFIG, check_taps

if TYPE_CHECKING:
    from edgespec.training.training import Report, Status

_NAMES = [each.name for each in fields(TrainingOptions)]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments; the defaults are those of `TrainingOptions`."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle with the target")
    parser.add_argument(
        "--text",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="UTF-8 texts such as the model will read and write, or .jsonl files with a prompt in "
        "each line (field prompt or turns)",
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
    machine = parser.add_argument_group("machine")
    add_options(machine, LoadOptions, "device", "threads", "memory")


def execute(arguments: argparse.Namespace) -> int:
    """Trains, and prints a line of JSON with what was reached."""
    require_torch()
    options = TrainingOptions(**given(arguments, TrainingOptions))
    bundle = bundles.load(arguments.bundle)
    taps = options.tapped(bundle.target.layers)
    check_taps(taps, bundle.target.layers)
    options = replace(options, taps=taps)
    output: Path = arguments.output

    from edgespec.export import copy_with_taps
    from edgespec.llm.llm import LLM
    from edgespec.training.texts import texts_of
    from edgespec.training.training import WORK, Training

    known = any((output / name).exists() for name in (CONFIG, WORK))
    if not known and output.exists() and any(output.iterdir()):
        raise InputError(f"{output} is not empty and not a head: give another folder")
    work = output / WORK
    work.mkdir(parents=True, exist_ok=True)
    tapped = work / "target"
    shutil.rmtree(tapped, ignore_errors=True)
    tapped.mkdir()
    copy_with_taps(bundle, tapped, taps)
    machine = {name: getattr(arguments, name) for name in ("device", "threads", "memory")}
    draft = "auto" if options.generate else "none"
    with LLM(tapped, draft=draft, **machine) as llm, _shown() as report, noted_interrupts() as stop:
        texts = texts_of(llm, arguments.text, options.window, options.generate)
        training = Training(llm, bundle, texts, options, output, report, stop)
        training.run()
    tell(json.dumps({"head": str(output), **training.facts()}))
    return INTERRUPTED if stop() else 0


@contextmanager
def _shown() -> Iterator[Report]:
    """Shows what a training reports on stderr, if that is a terminal."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with bars(*columns, transient=True) as progress:
        bar = progress.add_task("loading", total=None)
        yield lambda status: progress.update(bar, description=_line(status))


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
