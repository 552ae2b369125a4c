"""`edgespec bench`: compares draft sources with plain decoding, in a table or JSON."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import edgespec
from edgespec import bundle as bundles
from edgespec.bundle import TARGET, Bundle
from edgespec.cli.arguments import MACHINE, add_model, add_options, given, require_least
from edgespec.cli.models import chosen
from edgespec.cli.parsing import Rare
from edgespec.cli.tables import markdown_table
from edgespec.cli.terminal import tell
from edgespec.cli.waiting import waiting
from edgespec.llm.load.options import DRAFTS, LoadOptions
from edgespec.llm.options import GenerationOptions

if TYPE_CHECKING:
    from edgespec.llm.llm import LLM
    from edgespec.measuring.bench import BenchLine, BenchRequest

_FAULT = 1  # exit code if a text differs from plain decoding's, which is a bug
_NEW_TOKENS = 128
_SHORT_HASH = 12
_WIDTH = 80

_log = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    add_model(parser)
    show = parser.add_mutually_exclusive_group()
    show.add_argument(
        "--json", action="store_true", help=Rare("print one JSON object with all that was measured")
    )
    show.add_argument(
        "--share",
        action="store_true",
        help="print Markdown to be pasted: this machine, passes over several rows, speeds, and "
        "llama.cpp's where xllamacpp is installed and MODEL is a GGUF file",
    )
    texts = parser.add_argument_group("texts")
    texts.add_argument(
        "--prompts",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="a .jsonl file with prompt or turns in every line (only the first turn is used), or "
        "any other text file, which is one prompt; may be repeated (default: beginnings of Python "
        "code)",
    )
    texts.add_argument(
        "--limit", type=int, metavar="N", help=Rare("use only N prompts, of all parts of the files")
    )
    texts.add_argument(
        "--chat",
        action="store_true",
        help=Rare("send the prompt as a user message in the model's chat template"),
    )
    texts.add_argument(
        "--repeat",
        type=int,
        default=3,
        metavar="N",
        help=Rare("make every text N times and report medians (default: %(default)s)"),
    )
    texts.add_argument(
        "--bits",
        type=int,
        default=0,
        metavar="N",
        help=Rare(
            "also check that the bits of the target's logits at the last N positions of the first "
            "text do not change if rows are computed in chunks, or in trees beside others "
            "(default: no)"
        ),
    )
    names = ("max_new_tokens", "temperature", "seed")
    add_options(texts, GenerationOptions, *names, max_new_tokens=_NEW_TOKENS, seed=0)
    drafting = parser.add_argument_group("settings to compare with plain decoding")
    drafting.add_argument(
        "--draft",
        type=_drafts,
        default=("auto",),
        metavar="SOURCE,...",
        help=f"draft sources: {', '.join(DRAFTS)} (default: auto)",
    )
    add_options(parser.add_argument_group("machine"), LoadOptions, *MACHINE)


def execute(arguments: argparse.Namespace) -> int:
    """Measures, and prints a table or JSON.

    Returns:
        0; or `_FAULT` if a text differs from plain decoding's and rounding does not explain it, or
        if the bits of exact rows differ.
    """
    from edgespec.measuring.prompts import read_prompts

    require_least(arguments, repeat=1, limit=1, max_new_tokens=2, bits=0)
    GenerationOptions(temperature=arguments.temperature, seed=arguments.seed)  # for its checks
    prompts = read_prompts(arguments.prompts, arguments.limit)

    from edgespec.cli.progress import progress_bar
    from edgespec.cli.sharing import llama_cpp, shared
    from edgespec.llm.llm import LLM
    from edgespec.measuring.bench import Bench
    from edgespec.runtime.sequences.model import NATIVE

    bundle = bundles.load(chosen(arguments))
    drafts = arguments.draft
    requests = _requests(bundle, prompts, arguments)
    options = given(arguments, LoadOptions)
    options["draft"] = drafts[0] if len(drafts) == 1 else "auto" if drafts else "none"
    with waiting("the model is loaded"):
        loaded = LLM(bundle.path, **options)
    with loaded as llm:
        bench = Bench(llm, drafts, requests)
        others = llama_cpp(arguments.model, llm, requests) if arguments.share else []
        with progress_bar(bench.steps(arguments.repeat)) as show:
            lines = bench.measure(arguments.repeat, lambda what: show(what, 1), others)
        if arguments.share:
            tell(shared(llm, lines, others, arguments.prompts))
        bits = bench.bits(arguments.bits) if arguments.bits else None
        exact = llm.engines[TARGET] == NATIVE
        facts = _facts(llm, arguments, len(requests))
    if arguments.json:
        found = {"settings": [asdict(line) for line in lines]}
        tell(json.dumps(facts | {"exact": exact, "bits": bits and asdict(bits)} | found))
    elif not arguments.share:
        told = _heading(bundle, facts)
        if bits is not None:
            note = "" if exact else ", since the device is not exact"
            told.append(
                f"{bits.differing} of {bits.rows} rows have other bits in another pass{note}"
            )
        tell(*(fill(line, _WIDTH) for line in told), "", _table(lines))
    wrong = [line.name for line in lines if line.equal_to_plain == "no"]
    for name in wrong:
        _log.warning("%s: the text differs from plain decoding's: please report it", name)
    if exact and bits is not None and bits.differing:
        wrong += bits.where
        _log.warning("the bits of rows differ (%s): please report it", ", ".join(bits.where))
    return _FAULT if wrong else 0


def _table(lines: Sequence[BenchLine]) -> str:
    """Returns a table in Markdown, and a line on what is before the first token."""
    header = ("setting", "tokens/s", "range", "speedup", "tokens/round", "same text")
    rows = []
    for line in lines:
        least, most = line.tokens_per_second_range
        worst = line.equal_to_plain
        equal = worst if worst == "yes" else f"{line.verdicts[worst]} {worst}"
        speed = line.tokens_per_second, f"{least}-{most}", round(line.speedup_vs_plain, 2)
        rows.append((line.name, *speed, round(line.mean_accepted_length, 2), equal))
    first = ", ".join(f"{line.name} {line.ttft_ms:.0f} ms" for line in lines)
    told = fill(f"Medians of the repeats. First token after: {first}.", _WIDTH)
    return f"{markdown_table(header, rows)}\n\n{told}"


def _drafts(text: str) -> tuple[str, ...]:
    """Parses names of draft sources; drops none, since plain decoding is always measured."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in DRAFTS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(DRAFTS)}")
    return tuple(name for name in names if name != "none")


def _requests(
    bundle: Bundle, prompts: Sequence[str], arguments: argparse.Namespace
) -> list[BenchRequest]:
    from edgespec.measuring.bench import BenchRequest
    from edgespec.runtime.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.of(bundle)

    def tokens(prompt: str) -> tuple[int, ...]:
        if arguments.chat:
            text = tokenizer.chat([{"role": "user", "content": prompt}])
            return tuple(tokenizer.encode(text, add_special=False))
        return tuple(tokenizer.encode(prompt))

    how = arguments.max_new_tokens, arguments.temperature, arguments.seed
    return [BenchRequest(tokens(prompt), *how) for prompt in prompts]


def _facts(llm: LLM, arguments: argparse.Namespace, prompts: int) -> dict[str, Any]:
    from edgespec.system.environment import circumstances
    from edgespec.system.machine import default_threads

    bundle = llm.bundle
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
        "engines": llm.engines,
        "context": llm.context_length,
        "threads": arguments.threads or default_threads(),
        **circumstances(),
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
        f"threads: {facts['threads']}; on {', '.join(facts['engines'].values())}, "
        f"peak {facts['peak_rss_mb']} MiB",
        f"{machine['cpu']}, {machine['usable_cpus']} CPUs, {machine['memory_gib']} GiB, "
        f"load {machine['load_average']}; edgespec {edgespec.__version__}",
    ]
