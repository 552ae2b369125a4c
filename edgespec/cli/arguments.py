"""Options that several commands share, named like the fields of the API and with their defaults."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from edgespec.api.options import GenerationOptions
from edgespec.errors import InputError
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.deployment.options import (
    DRAFTS,
    FIXED_DRAFT_TOKENS,
    PIPELINES,
    PLANNED_DRAFT_TOKENS,
    PLANNED_DRAFTS,
    LoadOptions,
)
from edgespec.system.textfiles import read_utf8

LOAD_DEFAULTS = {field.name: field.default for field in fields(LoadOptions)}
GENERATION_DEFAULTS = {field.name: field.default for field in fields(GenerationOptions)}

_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}

CONTEXT_HELP = "tokens of prompt and output (default: what the model was made for, or what fits)"
MEMORY_HELP = "what may be used, as 2GiB, or by device, as cpu=8GiB,gpu=3GiB (default: all free)"
PLACE_HELP = "where the target's layers run, as 0-7=onnxruntime:cpu,8-=openvino:cpu"
SIMULATE_HELP = "run on a stated machine: the name of a laptop, or a JSON file (docs/simulator.md)"
GPU_LAYERS_HELP = "the last N layers and the head on the device gpu, the others on --device"
DEVICE_HELP = "where the target runs, as `edgespec devices` lists it; cpu picks the faster engine"


def given(arguments: argparse.Namespace, defaults: dict[str, Any]) -> dict[str, Any]:
    """What was said of the fields that `defaults` names, as far as the command knows them."""
    return {name: getattr(arguments, name) for name in defaults if hasattr(arguments, name)}


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


def add_bundle(parser: argparse.ArgumentParser) -> None:
    """Declare BUNDLE."""
    parser.add_argument(
        "bundle", nargs="?", type=Path, default=BUNDLE, metavar="BUNDLE",
        help="a bundle's folder (default: the embedded pair)",
    )  # fmt: skip


def add_pipeline(group: argparse._ActionsContainer) -> None:
    """Declare --pipeline."""
    group.add_argument(
        "--pipeline", choices=PIPELINES, default=LOAD_DEFAULTS["pipeline"],
        help="draft while the target verifies (overlap), or before it (serial); auto: where two "
        "devices take part, what pays (default: %(default)s)",
    )  # fmt: skip


def add_text_options(group: argparse._ArgumentGroup) -> None:
    """Declare how tokens are chosen, and how many."""
    add_option(group, "max_new_tokens", "tokens to make at most", "-n")
    add_option(group, "temperature", "0 is greedy", kind=float)
    add_option(group, "top_k", "keep the N likeliest tokens; 0 is off")
    add_option(
        group, "top_p", "keep the likeliest tokens of joint probability X; 1 is off", kind=float
    )
    add_option(
        group, "min_p", "keep tokens of X times the best one's probability; 0 is off", kind=float
    )
    add_option(group, "repetition_penalty", "above 1: avoid tokens seen before", kind=float)
    add_option(group, "seed", "the same one gives the same text (default: drawn and reported)")
    group.add_argument(
        "--stop", action="append", type=_unescape, default=[], metavar="TEXT",
        help=r"end before this text, which may hold \n, \t and \\; may be repeated",
    )  # fmt: skip
    form = group.add_mutually_exclusive_group()
    form.add_argument(
        "--json-schema", type=_content, metavar="FILE", help="write JSON valid by this schema"
    )
    form.add_argument("--regex", metavar="REGEX", help="write text that this matches")
    form.add_argument(
        "--grammar", type=_content, metavar="FILE", help="write text by this Lark grammar"
    )


def cut_off(tokens: int) -> str:
    """What is said of a text of so many tokens that -n has ended."""
    return f"cut after {tokens} tokens: a larger -n gives more"


def add_draft(group: argparse._ActionsContainer) -> None:
    """Declare --draft."""
    group.add_argument(
        "--draft", choices=DRAFTS, default=LOAD_DEFAULTS["draft"],
        help="draft source; auto: in every round what promises most (default: %(default)s)",
    )  # fmt: skip


def add_draft_source(group: argparse._ArgumentGroup) -> None:
    """Declare who drafts: what is settled when a bundle is loaded."""
    add_draft(group)
    add_pipeline(group)
    group.add_argument(
        "--draft-memory", type=_file_to_be, metavar="FILE",
        help="start from what recycling learned before, if FILE exists, and save it there",
    )  # fmt: skip


def add_draft_options(group: argparse._ArgumentGroup) -> None:
    """Declare how drafts are made."""
    add_draft_source(group)
    add_option(
        group, "num_assistant_tokens",
        f"tokens of a draft at most (default: {FIXED_DRAFT_TOKENS}; where it is planned, with "
        f"{' or '.join(PLANNED_DRAFTS)}: {PLANNED_DRAFT_TOKENS})",
        "--num-draft-tokens",
    )  # fmt: skip
    add_option(group, "tree_width", "branches of a draft tree per level; 1 drafts chains")


def add_device_options(group: argparse._ActionsContainer) -> None:
    """Declare where models run, and in what memory."""
    add_option(group, "device", DEVICE_HELP, kind=str)
    group.add_argument("--place", metavar="LAYERS=DEVICE,...", help=PLACE_HELP)
    add_option(group, "gpu_layers", GPU_LAYERS_HELP)
    add_option(group, "draft_device", "where the draft model runs", kind=str)
    add_option(group, "threads", "of each engine (default: physical cores)")
    add_option(group, "context", CONTEXT_HELP)
    group.add_argument("--memory", metavar="SIZE", help=MEMORY_HELP)
    group.add_argument("--simulate", metavar="MACHINE", help=SIMULATE_HELP)


def _file_to_be(name: str) -> str:
    if not Path(name).absolute().parent.is_dir():
        raise InputError(f"--draft-memory {name}: its folder does not exist: make it first")
    return name


def _content(name: str) -> str:
    return read_utf8(Path(name))


def _unescape(text: str) -> str:
    return re.sub(r"\\[nt\\]", lambda match: _ESCAPES[match[0]], text)
