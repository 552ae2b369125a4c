"""Names of models for clients, and their first pass."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from edgespec.errors import EdgespecError

if TYPE_CHECKING:
    import argparse

    from edgespec.api.llm import LLM
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


def warm_up_aside(llm: LLM) -> None:
    """Has a thread of its own make the first passes of a model, see `LLM.warm_up`."""

    def warm_up() -> None:
        with suppress(EdgespecError):  # a text says the same, to somebody who waits for it
            llm.warm_up()

    threading.Thread(target=warm_up, daemon=True).start()
