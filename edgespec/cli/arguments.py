"""Options that several commands share, named like the fields of the API and with their defaults."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from edgespec.options import PIPELINES, GenerationOptions, LoadOptions

LOAD_DEFAULTS = {field.name: field.default for field in fields(LoadOptions)}
GENERATION_DEFAULTS = {field.name: field.default for field in fields(GenerationOptions)}

DEVICE_HELP = "where the target runs, as `edgespec devices` lists it; cpu picks the faster engine"


def add_option(
    group: argparse._ActionsContainer,
    name: str,
    text: str,
    *flags: str,
    kind: type[Any] = int,
    default: object = None,
) -> None:
    """An option named like its field, with the field's default unless another is given."""
    if default is None:
        default = LOAD_DEFAULTS[name] if name in LOAD_DEFAULTS else GENERATION_DEFAULTS[name]
    shown = "" if default is None else f" (default: {default})"
    group.add_argument(
        *flags, f"--{name.replace('_', '-')}", dest=name, type=kind, default=default,
        metavar={int: "N", float: "X", str: "DEVICE"}[kind], help=text + shown,
    )  # fmt: skip


def add_pipeline(group: argparse._ActionsContainer) -> None:
    """Declare --pipeline."""
    group.add_argument(
        "--pipeline", choices=PIPELINES, default=LOAD_DEFAULTS["pipeline"],
        help="draft while the target verifies (overlap), or before it (serial); auto: where two "
        "devices take part, what pays (default: %(default)s)",
    )  # fmt: skip
