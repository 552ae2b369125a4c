"""`edgespec export`: makes a bundle from a checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgespec.bundle.options import ExportOptions
from edgespec.cli.arguments import add_options
from edgespec.cli.export_values import BUILT_IN, NONE
from edgespec.cli.parsing import Rare

OPTIMUM = "optimum"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments; the defaults are those of `ExportOptions`."""
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="folder of a checkpoint, GGUF file, ONNX file that optimum made, or Hub id: "
        "owner/name, or owner/name:FILE for a file, or a name that `edgespec search` lists; with "
        "--draft also a bundle",
    )
    parser.add_argument(
        "--via",
        choices=(OPTIMUM,),
        help=Rare(
            "let optimum export the model to ONNX first, for architectures that are not supported "
            "otherwise; needs the extra optimum"
        ),
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="BUNDLE", help="folder to create"
    )
    parser.add_argument(
        "--draft",
        metavar="DRAFT|none",
        help="what to draft with, in any of these forms: a smaller model, best of the same family, "
        "or a draft head of this model; none: nothing (default: the checkpoint's own head, if it "
        "has one)",
    )
    add_options(
        parser, ExportOptions, "precision", "draft_precision", "lm_head_precision", "kv_precision"
    )
    parser.add_argument(
        "--layer-skip",
        default=NONE,
        metavar="auto|none|SETS",
        help=Rare(
            "let the target draft for itself with some layers left out; auto: try which, on this "
            "machine; SETS: 4-6 for layers, 4a or 4m for an attention or MLP, commas between them, "
            "/ between sets (default: %(default)s)"
        ),
    )
    parser.add_argument(
        "--calibrate",
        type=Path,
        nargs="?",
        const=BUILT_IN,
        metavar="FILE",
        help="let the model read a text, and fit 4-bit weights to what it computes: a slower "
        "export, and a better bundle; FILE: a text like those that the model will read, on which "
        "--layer-skip auto tries layers, too (default: a built-in text)",
    )
    parser.add_argument(
        "--quality",
        action="store_true",
        help="also measure how far the bundle's predictions are from the original's, on a part of "
        "the text for calibration that no weights are fitted to; reads the checkpoint once more",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing bundle")


def execute(arguments: argparse.Namespace) -> int:
    """Exports, and prints the sizes, the quality and the result of a search."""
    from edgespec.cli.exporting import export  # loads the onnx package

    return export(arguments)
