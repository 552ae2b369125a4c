"""`edgespec export`: a checkpoint in, a bundle out."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.progress import TimeRemainingColumn as TimeRemaining

from edgespec.bundle.sublayers import parse
from edgespec.errors import InputError
from edgespec.export import (
    BLOCK_SIZES,
    KV_PRECISIONS,
    NPU_PRECISIONS,
    PRECISIONS,
    STORED,
    ExportOptions,
    replacing,
    resolve_checkpoint,
    write_bundle,
)
from edgespec.runtime.deployment.fixed_shapes import LONGEST_UNASKED
from edgespec.runtime.engines import SOCS, compiler
from edgespec.runtime.shapes import Shapes
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.tuning.calibrating import TextCalibration
from edgespec.tuning.precompiling import precompile
from edgespec.tuning.quantizing import QUANTIZED, quantize_variant
from edgespec.tuning.skipping import DEFAULT_BUDGET, LayerSkipSearch, SearchOptions
from edgespec.tuning.texts import read_text

_DEFAULTS = {field.name: field.default for field in fields(ExportOptions)}
_AUTO, _NONE = "auto", "none"
_log = logging.getLogger(__name__)
_DEVICES = ", ".join(soc.device for soc in SOCS.values())


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; the defaults are those of `ExportOptions`."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder, or a Hub id owner/name")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="BUNDLE", help="the folder to make"
    )
    parser.add_argument(
        "--draft", metavar="CHECKPOINT", help="a smaller model with the same tokenizer"
    )
    _add(
        parser, "precision", PRECISIONS, "of the target's weights; int4: 4 bits, and 8 for the "
        "vocabulary and the matrices that need them; int4-small: 4 bits for all, faster and worse; "
        "int8: twice the bytes, next to the original; w8a8: products of integers, for CPUs without "
        "VNNI"
    )  # fmt: skip
    _add(
        parser, "draft_precision", PRECISIONS, "of the draft's (default: the target's, or "
        "int4-small where that is int4)"
    )  # fmt: skip
    _add(
        parser, "lm_head_precision", STORED, "of the output projection and the embedding (default: "
        "the weights', or int8 where they are int4)"
    )  # fmt: skip
    _add(parser, "kv_precision", KV_PRECISIONS, "of the KV cache")
    _add(
        parser, "npu_precision", (*NPU_PRECISIONS, *QUANTIZED), "of a target's variant for NPUs, "
        "beside it; w8a16, w4a16: integers, with 16-bit activations calibrated on a text "
        "(default: none, or fp16 with --compile-for)",
    )  # fmt: skip
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
        "--layer-skip", default=_NONE, metavar="auto|none|SETS",
        help="drafts on the target's own layers: search which to leave out, or leave out these: "
        "4-6 for layers, 4a or 4m for an attention or MLP, commas between them, / between sets "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE",
        help="a text such as the model will read: quantized weights are fitted to what it does "
        "with it (default: passages of ours), and layer-skip drafts are tried on it (default: what "
        "the model makes)",
    )  # fmt: skip
    parser.add_argument(
        "--no-calibration", action="store_true",
        help="quantize without having the model read anything: faster and worse",
    )  # fmt: skip
    parser.add_argument(
        "--layer-skip-budget", type=float, default=None, metavar="SECONDS",
        help=f"that the search may take, more or less (default: {DEFAULT_BUDGET:g})",
    )  # fmt: skip
    parser.add_argument(
        "--compile-for", action="append", default=[], metavar="DEVICE",
        help=f"compile the target for this NPU, too, which need not be here: {_DEVICES}; may be "
        "given several times",
    )  # fmt: skip
    parser.add_argument(
        "--compile-shapes", type=Shapes.parse, metavar="ROWSxCAPACITIES",
        help="rows and cache rows of its calls, as 8/32x1024; each pair is compiled for itself "
        f"(default: 8 and 32 rows, for the model's context or {LONGEST_UNASKED} tokens)",
    )  # fmt: skip
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the bundle that is there already"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Export, and print sizes before and after and what a search has found."""
    _refuse_alone(arguments)
    skips = _skip_sets(arguments)
    given = {name: value for name, value in vars(arguments).items() if name in _DEFAULTS}
    size = arguments.block_size
    if arguments.compile_for and arguments.npu_precision is None:
        given["npu_precision"] = NPU_PRECISIONS[0]
    quantized = arguments.npu_precision in QUANTIZED
    if quantized:
        given["npu_precision"] = "fp32"  # and then from there
    options = ExportOptions(
        **given | {"block_size": None if size == _AUTO else int(size), "skip_sets": skips or ()}
    )
    # Before anything is exported in vain.
    for device in arguments.compile_for:
        compiler(device)
    if arguments.calibration is not None:
        read_text(arguments.calibration)
    target = resolve_checkpoint(arguments.checkpoint)
    draft = None if arguments.draft is None else resolve_checkpoint(arguments.draft)
    sources = (target,) if draft is None else (target, draft)
    requantized = compiled = 0
    quality = None
    with _progress_bars() as show:
        search = None if skips is None else _search(arguments, show)
        calibration = (
            None
            if arguments.no_calibration
            else TextCalibration(
                arguments.calibration, lambda done, total: show("reading", done, total)
            )
        )
        # All of it before an older bundle makes room: a text may be too short, a compiler refuse.
        with replacing(arguments.output, options.overwrite, sources) as folder:
            report = write_bundle(target, folder, draft, options, show, search, calibration)
            if calibration is not None:
                quality = calibration.quality(folder)
            fault = Tokenizer.from_folder(folder).chat_fault()
            if quantized:
                precision, text = arguments.npu_precision, arguments.calibration
                requantized = quantize_variant(folder, precision, text)
            for device in arguments.compile_for:
                compiled += precompile(folder, device, arguments.compile_shapes, show)
    stored = report.bundle_bytes + requantized
    share = stored / report.source_bytes
    print(
        f"{arguments.output}: {decimal(stored)}, "
        f"{share:.0%} of the checkpoints' {decimal(report.source_bytes)}"
    )
    if quality is not None:
        print(quality)
    if fault is not None:
        _log.warning(
            "the chat template is broken (%s): repair it in %s and export again; until then chat "
            "may fail, and run works without it", fault, arguments.checkpoint,
        )  # fmt: skip
    if arguments.compile_for:
        print(f"compiled for {', '.join(arguments.compile_for)}: {decimal(compiled)} more")
    if search is not None and search.summary:
        print(search.summary)
    return 0


def _refuse_alone(arguments: argparse.Namespace) -> None:
    """Options that would do nothing: another one was forgotten."""
    for name, needed in (("draft_precision", "draft"), ("compile_shapes", "compile_for")):
        if getattr(arguments, name) is not None and not getattr(arguments, needed):
            alone, other = (f"--{each.replace('_', '-')}" for each in (name, needed))
            raise InputError(f"{alone} does nothing without {other}: add that, or leave this out")


def _skip_sets(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    """The sets that are asked for; none of them: search; None: no layer-skip drafts."""
    if arguments.layer_skip == _AUTO:
        return ()
    if arguments.layer_skip != _NONE:
        sets = tuple(arguments.layer_skip.split("/"))
        for each in sets:
            parse(each)  # refused before a checkpoint is read
        return sets
    if arguments.layer_skip_budget is not None:
        raise InputError("--layer-skip-budget is for layer-skip drafts: add --layer-skip auto")
    return None


def _search(
    arguments: argparse.Namespace, show: Callable[[str, int, int], None]
) -> LayerSkipSearch:
    budget = arguments.layer_skip_budget
    options = SearchOptions(
        calibration=arguments.calibration, budget=DEFAULT_BUDGET if budget is None else budget
    )
    return LayerSkipSearch(options, lambda done, total: show("search", done, total))


def _add(parser: argparse.ArgumentParser, name: str, choices: tuple[str, ...], text: str) -> None:
    default = _DEFAULTS[name]
    shown = "" if default is None else f" (default: {default})"
    flag = f"--{name.replace('_', '-')}"
    parser.add_argument(flag, choices=choices, default=default, help=text + shown)


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of layers: give their numbers, as in 4 or 4,8"
        ) from None


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
            progress.update(bars[role], completed=done, total=total)

        yield show
