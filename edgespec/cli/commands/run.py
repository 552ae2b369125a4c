"""`edgespec run`: answers a prompt, or continues it, and prints the text as it is generated."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING

from edgespec.cli import INTERRUPTED
from edgespec.cli.answering import answer_events, read_first, show
from edgespec.cli.arguments import MACHINE, TEXT, WHOLE, add_options, given
from edgespec.cli.echo import echo_off
from edgespec.cli.interrupts import cancelled_by_sigint
from edgespec.cli.models import chosen, loaded, name_demonstration
from edgespec.cli.parsing import Rare
from edgespec.cli.prompt import add_prompt_arguments, take_prompt
from edgespec.cli.terminal import tell
from edgespec.cli.waiting import notices_kept
from edgespec.errors import InputError
from edgespec.llm.load.options import PLANNED_DRAFTS, LoadOptions
from edgespec.llm.options import GenerationOptions, in_conversation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgespec.llm.result import Result
    from edgespec.llm.stream import Stream
    from edgespec.runtime.speculation.generation import Round


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    add_prompt_arguments(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--raw",
        action="store_true",
        help="continue the prompt as plain text, though the model has a chat template",
    )
    form.add_argument("--chat", action="store_true", help=argparse.SUPPRESS)  # as it was once asked
    parser.add_argument(
        "--json", action="store_true", help=Rare("print one JSON object at the end")
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help=Rare(
            "print a table of the rounds on stderr: what each one drafted, its tokens and time, "
            "and the expected values"
        ),
    )
    texts = parser.add_argument_group("text")
    add_options(texts, GenerationOptions, *TEXT, "json_schema", **WHOLE)
    add_options(parser.add_argument_group("machine"), LoadOptions, "draft", *MACHINE)


def execute(arguments: argparse.Namespace) -> int:
    """Generates a text, and prints it with a line of statistics, or as JSON.

    Returns:
        0, or `INTERRUPTED` if the user stopped the text.
    """
    prompt = take_prompt(arguments)
    options = given(arguments, GenerationOptions)
    GenerationOptions.of(options)  # before a large model is loaded

    if prompt is None:
        return _chat(arguments)

    with loaded(arguments) as llm:
        answers = arguments.chat or (llm.tokenizer.has_chat_template and not arguments.raw)
        if answers:
            options = in_conversation(llm.sampling, options)
        stream = (llm.chat_stream if answers else llm.stream)(prompt, **options)
        if not arguments.json:
            name_demonstration(arguments, llm)
        with cancelled_by_sigint(stream), notices_kept(), echo_off():
            if arguments.json:
                for _ in stream:
                    pass
                tell(json.dumps(asdict(stream.result)))
            elif answers:
                show(answer_events(stream), thoughts=False)
            else:
                _continue(prompt, stream)
            if arguments.explain:
                _explain(stream.rounds)
            if not arguments.json:
                _tell(stream.result, llm.context_length, options.get("temperature", 0) > 0)
    return INTERRUPTED if stream.result.finish_reason == "cancelled" else 0


def _chat(arguments: argparse.Namespace) -> int:
    """Chats, if the model does and nothing was asked for that belongs to a single text."""
    missing = "there is no prompt: give PROMPT, -p, -f or text on stdin"
    if arguments.model is None or arguments.json or arguments.explain or arguments.raw:
        raise InputError(missing)
    from edgespec import bundle as bundles
    from edgespec.cli.commands import chat
    from edgespec.runtime.text.tokenizer import Tokenizer

    folder = chosen(arguments)
    if not Tokenizer.of(bundles.load(folder)).has_chat_template:
        raise InputError(f"{missing}, since the model has no chat template")
    how = {"system": None, "history": None, "mcp": None, "model": str(folder)}
    return chat.execute(argparse.Namespace(**(vars(arguments) | how)))


def _continue(prompt: str, stream: Stream) -> None:
    """Prints the text piece by piece behind the prompt, which a terminal shows less bright."""
    pieces = read_first(iter(stream), stream)
    first = next(pieces, "")
    if sys.stdout is not None and sys.stdout.isatty():
        from edgespec.cli.consoles import HarmlessConsole

        HarmlessConsole(highlight=False).print(prompt, style="dim", end="", soft_wrap=True)
    for piece in chain([first], pieces):
        tell(piece, end="")
    tell()


def _tell(result: Result, context: int, sampled: bool) -> None:
    """Prints why the text was cut, if it was, and its statistics."""
    if result.finish_reason == "length":
        line = f"stopped after {result.new_tokens} tokens: use a larger -n for a longer text"
        tell(line, stream=sys.stderr)
    if result.finish_reason == "loop":
        tell("stopped: it repeats itself", stream=sys.stderr)
    if result.finish_reason == "context":
        tell(f"stopped at the end of the context, {context} tokens", stream=sys.stderr)
    tell(_facts(result, sampled), stream=sys.stderr)


def _explain(rounds: Sequence[Round]) -> None:
    """Prints a line for each round, with the expected values if drafts were planned."""
    from rich.table import Table

    from edgespec.cli.consoles import HarmlessConsole

    planned = any(step.forecast is not None for step in rounds)
    names = ("round", "source", "nodes", "tokens", "expected", "ms", "expected")
    table = Table(box=None, header_style="")
    for name in names if planned else [name for name in names if name != "expected"]:
        table.add_column(name, justify="left" if name == "source" else "right", no_wrap=True)
    for number, step in enumerate(rounds, 1):
        tokens = [str(len(step.tokens))]
        ms = [f"{step.seconds * 1e3:.1f}"]
        if planned:
            forecast = step.forecast
            tokens.append("" if forecast is None else f"{forecast.tokens:.2f}")
            ms.append("" if forecast is None else f"{forecast.seconds * 1e3:.1f}")
        table.add_row(str(number), step.source, str(step.drafted), *tokens, *ms)
    HarmlessConsole(stderr=True).print(table)


def _facts(result: Result, sampled: bool) -> str:
    facts = [
        f"{result.new_tokens} tokens ({result.finish_reason})",
        f"{result.tokens_per_second:.1f} tokens/s",
        f"mean accepted length {result.mean_accepted_length:.2f}",
        f"draft: {result.draft}{_shares(result)}",
        f"engine: {result.engine}{'' if result.exact else ' (exact except at near-ties)'}",
    ]
    if result.draft_engine not in (None, result.engine):
        facts.append(f"draft model: {result.draft_engine}")
    return ", ".join(facts + [f"seed: {result.seed}"] * sampled)


def _shares(result: Result) -> str:
    """Formats the share of rounds by source, if drafts were planned."""
    if result.draft not in PLANNED_DRAFTS or not result.rounds:
        return ""
    shares = [f"{name} {count / result.rounds:.0%}" for name, count in result.sources.items()]
    return f" ({', '.join(shares)})"
