"""`edgespec pull`: makes a bundle of a model in the cache folder, for later commands."""

from __future__ import annotations

import argparse

from edgespec.cli.arguments import MODEL_HELP, add_options
from edgespec.cli.models import chosen
from edgespec.cli.terminal import tell
from edgespec.llm.load.options import LoadOptions


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP.partition(" (default")[0])
    add_options(parser, LoadOptions, "draft")


def execute(arguments: argparse.Namespace) -> int:
    """Makes the bundle unless it is there, and prints its folder."""
    tell(chosen(arguments))
    return 0
