"""Options that several commands share, with the names and defaults of the API's fields."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from edgespec.api.loading import (
    DRAFTS,
    FIXED_DRAFT_TOKENS,
    PIPELINES,
    PLANNED_DRAFT_TOKENS,
    PLANNED_DRAFTS,
    LoadOptions,
    parse_size,
)
from edgespec.api.options import GenerationOptions
from edgespec.errors import InputError
from edgespec.models.embedded import BUNDLE
from edgespec.system.textfiles import read_utf8

LOAD_DEFAULTS = {field.name: field.default for field in fields(LoadOptions)}
GENERATION_DEFAULTS = {field.name: field.default for field in fields(GenerationOptions)}

_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}

CONTEXT_HELP = (
    "maximum number of tokens of prompt and output (default: the model's, or what fits the memory)"
)
MEMORY_HELP = (
    "memory limit such as 2GiB, or by device such as cpu=8GiB,gpu=3GiB (default: all free memory)"
)
GPU_LAYERS_HELP = "run the last N layers and the head on the device gpu, the others on --device"
DEVICE_HELP = (
    "device of the target, as listed by `edgespec devices`; cpu picks the faster CPU engine"
)
DRAFT_DEVICE_HELP = "device of the draft model"
THREADS_HELP = "number of threads per engine (default: number of physical cores)"
TEMPERATURE_HELP = "sampling temperature; 0 is greedy"
CHAT_HELP = "send the prompt as a user message in the model's chat template"


def given(arguments: argparse.Namespace, defaults: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of the options named in `defaults` that the command has."""
    return {name: getattr(arguments, name) for name in defaults if hasattr(arguments, name)}


def add_option(
    group: argparse._ActionsContainer,
    name: str,
    text: str,
    *flags: str,
    kind: type[Any] = int,
    default: object = None,
) -> None:
    """Declares an option named like its field, with the field's default unless another is given."""
    if default is None:
        default = LOAD_DEFAULTS[name] if name in LOAD_DEFAULTS else GENERATION_DEFAULTS[name]
    shown = "" if default is None else f" (default: {default})"
    group.add_argument(
        *flags, f"--{name.replace('_', '-')}", dest=name, type=kind, default=default,
        metavar={int: "N", float: "X", str: "DEVICE"}[kind], help=text + shown,
    )  # fmt: skip


def add_bundle(parser: argparse.ArgumentParser) -> None:
    """Declares BUNDLE."""
    parser.add_argument(
        "bundle", nargs="?", type=Path, default=BUNDLE, metavar="BUNDLE",
        help="folder of a bundle (default: the embedded pair)",
    )  # fmt: skip


def add_pipeline(group: argparse._ActionsContainer) -> None:
    """Declares --pipeline."""
    group.add_argument(
        "--pipeline", choices=PIPELINES, default=LOAD_DEFAULTS["pipeline"],
        help="draft while the target verifies (overlap) or before it does (serial); auto: the "
        "faster one if the models run on different devices, else serial (default: %(default)s)",
    )  # fmt: skip


def add_text_options(group: argparse._ArgumentGroup) -> None:
    """Declares the options that say how tokens are chosen and when a text ends."""
    add_option(group, "max_new_tokens", "maximum number of new tokens", "-n")
    add_option(group, "temperature", TEMPERATURE_HELP, kind=float)
    add_option(group, "top_k", "sample from the N likeliest tokens; 0 is off")
    add_option(
        group, "top_p", "sample from the likeliest tokens with total probability X; 1 is off",
        kind=float,
    )  # fmt: skip
    add_option(
        group, "min_p",
        "sample from tokens with at least X times the best one's probability; 0 is off",
        kind=float,
    )  # fmt: skip
    add_option(group, "repetition_penalty", "above 1: make repeated tokens less likely", kind=float)
    add_option(group, "seed", "the same seed gives the same text (default: random, and reported)")
    group.add_argument(
        "--stop", action="append", type=_unescape, default=[], metavar="TEXT",
        help=r"end the text before TEXT, which may contain \n, \t and \\; may be repeated",
    )  # fmt: skip
    form = group.add_mutually_exclusive_group()
    form.add_argument(
        "--json-schema", type=_content, metavar="FILE",
        help="generate JSON that is valid for the schema in FILE",
    )  # fmt: skip
    form.add_argument("--regex", metavar="REGEX", help="generate text that matches REGEX")
    form.add_argument(
        "--grammar", type=_content, metavar="FILE",
        help="generate text that follows the Lark grammar in FILE",
    )  # fmt: skip


def cut_off(tokens: int) -> str:
    """Returns the message for a text that -n has ended."""
    return f"stopped after {tokens} tokens: use a larger -n for a longer text"


def add_draft(group: argparse._ActionsContainer) -> None:
    """Declares --draft."""
    group.add_argument(
        "--draft", choices=DRAFTS, default=LOAD_DEFAULTS["draft"],
        help="draft source; auto: in every round the sources with the highest expected speed "
        "(default: %(default)s)",
    )  # fmt: skip


def add_draft_source(group: argparse._ArgumentGroup) -> None:
    """Declares the draft options that take effect when a bundle is loaded."""
    add_draft(group)
    add_pipeline(group)
    group.add_argument(
        "--draft-memory", type=partial(_file_in_folder, "--draft-memory"), metavar="FILE",
        help="load what recycling learned before from FILE if it exists, and save it there at the "
        "end",
    )  # fmt: skip


def add_draft_options(group: argparse._ArgumentGroup) -> None:
    """Declares all draft options."""
    add_draft_source(group)
    add_option(
        group, "num_assistant_tokens",
        f"maximum number of tokens in a draft (default: {FIXED_DRAFT_TOKENS}; with "
        f"{' or '.join(PLANNED_DRAFTS)}: {PLANNED_DRAFT_TOKENS})",
        "--num-draft-tokens",
    )  # fmt: skip
    add_option(
        group, "tree_width", "maximum number of branches per level of a draft tree; 1: chains"
    )


def add_prediction(group: argparse._ActionsContainer) -> None:
    """Declares --prediction."""
    group.add_argument(
        "--prediction", type=_content, metavar="FILE",
        help="draft from the text in FILE, which the new text is expected to be much like",
    )  # fmt: skip


def add_device_options(group: argparse._ActionsContainer) -> None:
    """Declares the options for devices and memory."""
    add_option(group, "device", DEVICE_HELP, kind=str)
    add_option(group, "gpu_layers", GPU_LAYERS_HELP)
    add_option(group, "draft_device", DRAFT_DEVICE_HELP, kind=str)
    add_option(group, "threads", THREADS_HELP)
    add_option(group, "context", CONTEXT_HELP)
    group.add_argument("--memory", metavar="SIZE", help=MEMORY_HELP)


def add_cache_options(group: argparse._ActionsContainer) -> None:
    """Declares --sessions and --prefix-reuse, for commands with --parallel."""
    group.add_argument(
        "--sessions", type=int, metavar="N",
        help="number of texts of full length to reserve cache memory for (default: as --parallel)",
    )  # fmt: skip
    group.add_argument(
        "--prefix-reuse", action=argparse.BooleanOptionalAction, default=True,
        help="reuse caches for the beginning that a prompt shares with an earlier text; on engines "
        "that are not exact, a near-tie of two tokens may then go the other way (default: on)",
    )  # fmt: skip


def add_prompt_cache(group: argparse._ActionsContainer) -> None:
    """Declares --prompt-cache and --prompt-cache-size."""
    group.add_argument(
        "--prompt-cache", metavar="FOLDER",
        help="keep what texts have computed in FOLDER, so that prompts that begin alike start "
        "sooner, after a restart too; whoever can read FOLDER can find out what was asked",
    )  # fmt: skip
    group.add_argument(
        "--prompt-cache-size", type=parse_size, default=LOAD_DEFAULTS["prompt_cache_size"],
        metavar="SIZE",
        help="space on disk for it; what was not used for longest gives way (default: 2GiB)",
    )  # fmt: skip


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Declares what a command that makes texts has for devices, memory and disk."""
    machine = parser.add_argument_group("machine")
    add_device_options(machine)
    add_prompt_cache(machine)


def require_least(arguments: argparse.Namespace, **least: int) -> None:
    """Checks numbers that users may have given, before a large model is loaded.

    Args:
        arguments: values of all options; None for those that were not given.
        least: the smallest value of each option.

    Raises:
        InputError: if one is smaller.
    """
    for name, value in given(arguments, least).items():
        if value is not None and value < least[name]:
            raise InputError(f"--{name} is {value}: give a whole number of at least {least[name]}")


def layer_numbers(text: str) -> tuple[int, ...]:
    """Parses a list of layers, such as 4 or 4,8."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of layers: give their numbers, such as 4 or 4,8"
        ) from None


def token_count(text: str) -> int:
    """Parses a number of tokens, such as 20000, or 32k for 32 x 1024."""
    digits, factor = (text[:-1], 1024) if text[-1:].lower() == "k" else (text, 1)
    if not (digits.isdecimal() and digits.isascii() and int(digits) > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of tokens, such as 32k or 20000")
    return int(digits) * factor


def _file_in_folder(option: str, name: str) -> str:
    if not Path(name).absolute().parent.is_dir():
        raise InputError(f"{option} {name}: its folder does not exist: create it first")
    return name


def _content(name: str) -> str:
    return read_utf8(Path(name))


def _unescape(text: str) -> str:
    return re.sub(r"\\[nt\\]", lambda match: _ESCAPES[match[0]], text)
