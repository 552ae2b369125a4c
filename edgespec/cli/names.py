"""Names of models for clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from edgespec.bundle import Bundle


def add_model_name(parser: argparse.ArgumentParser) -> None:
    """Declares --model-name."""
    parser.add_argument(
        "--model-name", metavar="NAME",
        help="name of the model in requests and answers (default: its folder's)",
    )  # fmt: skip


def model_name(bundle: Bundle) -> str:
    """Returns the name of the bundle's folder, or of the embedded pair's target."""
    from edgespec.models.embedded import BUNDLE

    if bundle.path.resolve() == BUNDLE.resolve():
        return bundle.manifest.provenance["target"]
    return bundle.path.resolve().name
