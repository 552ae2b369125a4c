"""`edgespec push`: sends a draft head to the Hugging Face Hub."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgespec.cli.terminal import tell


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("head", type=Path, metavar="HEAD", help="folder of a trained head")
    parser.add_argument(
        "repository",
        metavar="OWNER/NAME",
        help="where to on the Hub; `--draft OWNER/NAME` then drafts with it on any machine",
    )
    parser.add_argument(
        "--license",
        metavar="ID",
        help="licence in the head's card, such as apache-2.0; that of its model may bind it "
        "(default: what the card says)",
    )
    parser.add_argument(
        "--private", action="store_true", help="a new repository is seen by its owner alone"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Sends it, and prints its address."""
    from edgespec.export.sources.upload import set_license, upload_head

    if arguments.license is not None:
        set_license(arguments.head / "README.md", arguments.license)
    tell(upload_head(arguments.head, arguments.repository, arguments.private))
    return 0
