"""`edgespec run`: a prompt in, its continuation out as it is made."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from edgespec.cli import INTERRUPTED
from edgespec.cli.arguments import (
    DEVICE_HELP,
    GENERATION_DEFAULTS,
    LOAD_DEFAULTS,
    add_option,
    add_pipeline,
)
from edgespec.cli.prompt import add_prompt_arguments, bundle_and_prompt
from edgespec.errors import InputError
from edgespec.options import (
    DRAFTS,
    FIXED_DRAFT_TOKENS,
    GPU_LAYERS_HELP,
    MEMORY_HELP,
    PLACE_HELP,
    PLANNED_DRAFT_TOKENS,
    PLANNED_DRAFTS,
    SIMULATE_HELP,
    GenerationOptions,
    checked,
)

if TYPE_CHECKING:
    from edgespec.llm import LLM
    from edgespec.stream import GenerationResult, TextStream

_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; the defaults are those of the API."""
    add_prompt_arguments(parser)
    parser.add_argument("--chat", action="store_true", help="ask by the model's chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument(
        "--explain", action="store_true",
        help="say on stderr what each round drafted, what it was expected to bring and what came",
    )  # fmt: skip
    _add_text_options(parser.add_argument_group("text"))
    _add_draft_options(parser.add_argument_group("drafting (never changes the text)"))
    _add_device_options(parser.add_argument_group("machine"))


def execute(arguments: argparse.Namespace) -> int:
    """Generate, and print the text with a line of facts, or JSON.

    Returns:
        0, or `INTERRUPTED` if the user cut the text short.
    """
    bundle, prompt = bundle_and_prompt(arguments)
    options = {name: getattr(arguments, name) for name in GENERATION_DEFAULTS}
    checked(GenerationOptions, options)  # before a large model is loaded in vain
    memory = arguments.draft_memory
    if memory is not None and not Path(memory).absolute().parent.is_dir():
        raise InputError(f"--draft-memory {memory}: its folder does not exist: make it first")

    from edgespec.llm import LLM

    llm = LLM(bundle, **{name: getattr(arguments, name) for name in LOAD_DEFAULTS})
    stream = llm.stream(_chat_tokens(llm, prompt) if arguments.chat else prompt, **options)
    with _cancelled_by_sigint(stream):
        if not arguments.json:
            _show_prompt("" if arguments.chat else prompt)
        explained = 0
        for piece in stream:
            if not arguments.json:
                print(piece, end="", flush=True)
            if arguments.explain:
                explained = _explain(stream, explained)
        if arguments.explain:  # the last rounds may have held their text back
            _explain(stream, explained)
        if arguments.json:
            print(json.dumps(asdict(stream.result)))
        else:
            print(flush=True)
            print(_facts(stream.result, arguments.temperature > 0), file=sys.stderr)
    if memory is not None:
        llm.save_draft_memory(memory)
    return INTERRUPTED if stream.result.finish_reason == "cancelled" else 0


def _add_text_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "max_new_tokens", "tokens to make at most", "-n")
    add_option(group, "temperature", "0 is greedy", kind=float)
    add_option(group, "top_k", "keep the K likeliest tokens; 0 is off")
    add_option(
        group, "top_p", "keep the likeliest tokens of joint probability P; 1 is off", kind=float
    )
    add_option(
        group, "min_p", "keep tokens of P times the best one's probability; 0 is off", kind=float
    )
    add_option(group, "repetition_penalty", "above 1: avoid tokens seen before", kind=float)
    add_option(group, "seed", "of the sampling (default: drawn and reported)")
    group.add_argument(
        "--stop", action="append", type=_unescape, default=[], metavar="TEXT",
        help=r"end before this text, which may hold \n, \t and \\; may be repeated",
    )  # fmt: skip


def _add_draft_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--draft", choices=DRAFTS, default=LOAD_DEFAULTS["draft"],
        help="draft source; auto: in every round what promises most (default: %(default)s)",
    )  # fmt: skip
    add_pipeline(group)
    group.add_argument(
        "--draft-memory", metavar="FILE",
        help="start from what recycling learned before, if FILE exists, and save it there",
    )  # fmt: skip
    add_option(
        group, "num_assistant_tokens",
        f"tokens of a draft at most (default: {FIXED_DRAFT_TOKENS}; where it is planned, with "
        f"{' or '.join(PLANNED_DRAFTS)}: {PLANNED_DRAFT_TOKENS})",
        "--num-draft-tokens",
    )  # fmt: skip
    add_option(group, "tree_width", "branches of a draft tree per level; 1 drafts chains")


def _add_device_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "device", DEVICE_HELP, kind=str)
    group.add_argument("--place", metavar="LAYERS=DEVICE,...", help=PLACE_HELP)
    add_option(group, "gpu_layers", GPU_LAYERS_HELP)
    add_option(group, "draft_device", "where the draft model runs", kind=str)
    add_option(group, "threads", "of each engine (default: physical cores)")
    add_option(
        group, "context", "tokens of prompt and output (default: what the model was made for)"
    )
    group.add_argument("--memory", metavar="SIZE", help=MEMORY_HELP)
    group.add_argument("--simulate", metavar="MACHINE", help=SIMULATE_HELP)


def _unescape(text: str) -> str:
    return re.sub(r"\\[nt\\]", lambda match: _ESCAPES[match[0]], text)


def _chat_tokens(llm: LLM, prompt: str) -> list[int]:
    text = llm.tokenizer.chat([{"role": "user", "content": prompt}])
    return llm.tokenizer.encode(text, add_special=False)


def _explain(stream: TextStream, done: int) -> int:
    """A line for each round after the first `done`; how many there are now."""
    rounds = stream.rounds
    for number, step in enumerate(rounds[done:], done + 1):
        came = f"{len(step.tokens)} tokens in {step.seconds * 1e3:.1f} ms"
        expected = ""
        if step.forecast is not None:
            seconds = step.forecast.seconds * 1e3
            expected = f"expected {step.forecast.tokens:.2f} tokens in {seconds:.1f} ms, "
        line = f"round {number}: {step.source}, {step.drafted} nodes, {expected}came {came}"
        print(line, file=sys.stderr)
    return len(rounds)


def _show_prompt(prompt: str) -> None:
    """On a terminal the prompt comes first, so that the whole reads as one text."""
    if prompt and sys.stdout is not None and sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        Console().print(Text(prompt, "dim"), end="", soft_wrap=True)


def _facts(result: GenerationResult, sampled: bool) -> str:
    facts = [
        f"{result.new_tokens} tokens ({result.finish_reason})",
        f"{result.tokens_per_second:.1f} tokens/s",
        f"mean accepted length {result.mean_accepted_length:.2f}",
        f"draft: {result.draft}{_shares(result)}",
        f"engine: {result.engine}",
    ]
    if result.simulated is not None:
        facts.insert(0, f"simulated on {result.simulated}")
    return ", ".join(facts + [f"seed: {result.seed}"] * sampled)


def _shares(result: GenerationResult) -> str:
    """Of which rounds each source drafted, where there is a choice."""
    if result.draft not in PLANNED_DRAFTS or not result.rounds:
        return ""
    shares = [f"{name} {count / result.rounds:.0%}" for name, count in result.sources.items()]
    return f" ({', '.join(shares)})"


@contextmanager
def _cancelled_by_sigint(stream: TextStream) -> Iterator[None]:
    """Ctrl-C ends the text after the round under way; a second one does not wait for it."""
    previous = signal.getsignal(signal.SIGINT)

    def cancel(_number: int, _frame: FrameType | None) -> None:
        stream.cancel()
        signal.signal(signal.SIGINT, previous)

    if previous is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
