"""`edgespec bench`: compares draft sources with plain decoding, as a card or JSON."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import edgespec
from edgespec import bundle as bundles
from edgespec.api.loading import DRAFTS, LoadOptions
from edgespec.api.options import GenerationOptions
from edgespec.bundle import Bundle
from edgespec.cli.arguments import (
    CHAT_HELP,
    DEVICE_HELP,
    DRAFT_DEVICE_HELP,
    MEMORY_HELP,
    TEMPERATURE_HELP,
    THREADS_HELP,
    add_bundle,
    add_option,
    add_pipeline,
)
from edgespec.cli.plots import check_png, save_bench_png
from edgespec.cli.progress import progress_bar
from edgespec.errors import InputError

if TYPE_CHECKING:
    from edgespec.measuring.worker import Request

_FAULT = 1  # exit code if a text differs from plain decoding's, which is a bug
_NEW_TOKENS = 128
_SHORT_HASH = 12

_log = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    add_bundle(parser)
    show = parser.add_mutually_exclusive_group()
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.add_argument("--markdown", action="store_true", help="print the card as Markdown")
    parser.add_argument("--png", type=Path, metavar="FILE", help="save a plot of the results")
    texts = parser.add_argument_group("texts")
    texts.add_argument(
        "--prompts", action="append", type=Path, default=[], metavar="FILE",
        help="a .jsonl file with prompt or turns in every line (only the first turn is used), or "
        "any other text file, which is one prompt; may be repeated (default: beginnings of Python "
        "code)",
    )  # fmt: skip
    texts.add_argument("--limit", type=int, metavar="N", help="use only the first N prompts")
    texts.add_argument("--chat", action="store_true", help=CHAT_HELP)
    texts.add_argument(
        "--repeat", type=int, default=3, metavar="N",
        help="make every text N times and report medians (default: %(default)s)",
    )  # fmt: skip
    texts.add_argument(
        "--bits", type=int, default=0, metavar="N",
        help="also check that the bits of the target's logits at the last N positions of the first "
        "text do not change if rows are computed in chunks, random trees or resumed texts "
        "(default: no)",
    )  # fmt: skip
    add_option(
        texts, "max_new_tokens", "maximum number of new tokens per text", "-n", default=_NEW_TOKENS
    )
    add_option(texts, "temperature", TEMPERATURE_HELP, kind=float)
    add_option(texts, "seed", "seed of the sampling, the same in all settings", default=0)
    drafting = parser.add_argument_group("settings to compare with plain decoding")
    drafting.add_argument(
        "--draft", type=_drafts, default=("auto",), metavar="SOURCE,...",
        help=f"draft sources: {', '.join(DRAFTS)} (default: auto)",
    )  # fmt: skip
    add_pipeline(drafting)
    machine = parser.add_argument_group("machine")
    add_option(machine, "device", DEVICE_HELP, kind=str)
    add_option(machine, "draft_device", DRAFT_DEVICE_HELP, kind=str)
    add_option(machine, "threads", THREADS_HELP)
    add_option(
        machine, "context",
        "maximum number of tokens of prompt and output (default: 4096, or more if texts need it)",
    )  # fmt: skip
    machine.add_argument("--memory", metavar="SIZE", help=f"for each setting: {MEMORY_HELP}")


def execute(arguments: argparse.Namespace) -> int:
    """Measures, and prints a card or JSON.

    Returns:
        0; or `_FAULT` if a text differs from plain decoding's and rounding does not explain it, or
        if the bits of exact rows differ.
    """
    from edgespec.measuring.prompts import read_prompts

    _check(arguments)
    prompts = read_prompts(arguments.prompts, arguments.limit)
    bundle = bundles.load(arguments.bundle)

    from edgespec.cli.cards import markdown, print_card
    from edgespec.measuring.bench import Bench
    from edgespec.measuring.native import NativeBench, are_native
    from edgespec.system.machine import default_threads

    threads = default_threads() if arguments.threads is None else arguments.threads
    options = LoadOptions(
        device=arguments.device,
        draft_device=arguments.draft_device,
        pipeline=arguments.pipeline,
        threads=threads,
        context=arguments.context,
        memory=arguments.memory,
    )
    requests = _requests(bundle, prompts, arguments)
    kind = NativeBench if are_native(bundle, options, arguments.draft) else Bench
    bench = kind(bundle, options, arguments.draft, requests, arguments.bits)
    with progress_bar(bench.steps(arguments.repeat)) as show:
        lines = bench.measure(arguments.repeat, lambda what: show(what, 1))
    facts = _facts(bundle, arguments, len(requests))
    facts |= {"threads": threads, "turns": "texts" if bench.together else "repeats"}
    if arguments.json:
        print(json.dumps(facts | {"settings": [asdict(line) for line in lines]}))
    elif arguments.markdown:
        print(markdown(_heading(bundle, facts), lines))
    else:
        print_card(_heading(bundle, facts), lines)
    wrong = [line.name for line in lines if line.equal_to_plain == "no"]
    for name in wrong:
        _log.warning("%s: the text differs from plain decoding's: please report it", name)
    for line in lines:
        if line.exact and line.bits is not None and line.bits.differing:
            wrong.append(line.name)
            _log.warning(
                "%s: the bits of %d of %d rows differ (%s): please report it",
                *(line.name, line.bits.differing, line.bits.rows, ", ".join(line.bits.where)),
            )
    if arguments.png is not None:  # last, so that no results are lost if it cannot be written
        save_bench_png(arguments.png, lines, _heading(bundle, facts)[0])
    return _FAULT if wrong else 0


def _check(arguments: argparse.Namespace) -> None:
    """Checks the options that can be checked without a bundle."""
    for name, least in (("repeat", 1), ("limit", 1), ("max_new_tokens", 2), ("bits", 0)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise InputError(f"{name} is {value}: give a whole number of at least {least}")
    GenerationOptions(temperature=arguments.temperature, seed=arguments.seed)
    if arguments.png is not None:
        check_png(arguments.png)


def _drafts(text: str) -> tuple[str, ...]:
    """Parses names of draft sources; drops none, since plain decoding is always measured."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in DRAFTS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(DRAFTS)}")
    return tuple(name for name in names if name != "none")


def _requests(
    bundle: Bundle, prompts: Sequence[str], arguments: argparse.Namespace
) -> list[Request]:
    from edgespec.measuring.worker import Request
    from edgespec.runtime.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(bundle.path)

    def tokens(prompt: str) -> tuple[int, ...]:
        if arguments.chat:
            text = tokenizer.chat([{"role": "user", "content": prompt}])
            return tuple(tokenizer.encode(text, add_special=False))
        return tuple(tokenizer.encode(prompt))

    how = arguments.max_new_tokens, arguments.temperature, arguments.seed
    return [Request(tokens(prompt), *how) for prompt in prompts]


def _facts(bundle: Bundle, arguments: argparse.Namespace, prompts: int) -> dict[str, Any]:
    from edgespec.system.environment import git_revision, hardware, versions

    return {
        "bundle": str(bundle.path),
        "bundle_hash": bundle.digest,
        "precision": bundle.target.precision.weights,
        "parameters": {name: role.parameters for name, role in bundle.manifest.roles.items()},
        "prompts": prompts,
        "prompt_files": [path.name for path in arguments.prompts],
        "repeats": arguments.repeat,
        "max_new_tokens": arguments.max_new_tokens,
        "temperature": arguments.temperature,
        "seed": arguments.seed,
        "chat": arguments.chat,
        "pipeline": arguments.pipeline,
        "device": arguments.device,
        "draft_device": arguments.draft_device,
        "hardware": hardware(),
        "versions": versions(),
        "git_revision": git_revision(),
    }


def _heading(bundle: Bundle, facts: Mapping[str, Any]) -> list[str]:
    """Returns lines that say what was measured, how and where."""
    sampling = f"temperature {facts['temperature']:g}, seed {facts['seed']}"
    machine = facts["hardware"]
    return [
        f"{bundle.path}: {facts['precision']}, a target with {bundle.target.parameters:,} "
        f"parameters, digest {bundle.digest[:_SHORT_HASH]}",
        f"{facts['prompts']} prompts, up to {facts['max_new_tokens']} new tokens, "
        f"{sampling if facts['temperature'] else 'greedy'}; repeats: {facts['repeats']}, "
        f"threads: {facts['threads']}",
        f"{machine['cpu']}, {machine['usable_cpus']} CPUs, {machine['memory_gib']} GiB, "
        f"load {machine['load_average']}; edgespec {edgespec.__version__}",
    ]
