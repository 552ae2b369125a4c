"""`edgespec batch`: answers a file of requests, and goes on where an earlier start ended."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.cli import ERRORS_IN_LINES, INTERRUPTED
from edgespec.cli.arguments import CACHES, MACHINE, add_model, add_options, given, require_least
from edgespec.cli.interrupts import noted_interrupts
from edgespec.cli.models import chosen, loaded
from edgespec.cli.parsing import Rare
from edgespec.cli.terminal import tell
from edgespec.errors import InputError, installing
from edgespec.llm.at_once import TEXTS_AT_ONCE, TextsAtOnce
from edgespec.llm.load.options import LoadOptions

if TYPE_CHECKING:
    from edgespec.batch.files import Journal
    from edgespec.batch.running import Batch
    from edgespec.bundle import Bundle


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments; those of the model have the API's defaults."""
    add_model(parser)
    parser.add_argument(
        "input", type=Path, metavar="INPUT", help="file with a request in OpenAI's format per line"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="file for the answers; until all are there, they are in FILE.partial",
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="delete the answers of an earlier start, and replace the output if it exists",
    )
    parser.add_argument(
        "--model-name",
        metavar="NAME",
        help=Rare("name of the model in requests and answers (default: its folder's)"),
    )
    texts = parser.add_argument_group("texts")
    texts.add_argument(
        "--parallel",
        type=int,
        default=TEXTS_AT_ONCE,
        metavar="N",
        help="number of texts to generate at once (default: %(default)s)",
    )
    add_options(texts, LoadOptions, *CACHES, sessions=None)
    add_options(parser.add_argument_group("machine"), LoadOptions, "draft", *MACHINE)


def execute(arguments: argparse.Namespace) -> int:
    """Answers the requests that have no answer yet, and writes the output when all have.

    Returns:
        0, `ERRORS_IN_LINES` if some answers are errors, or `INTERRUPTED` if the user stopped it.
    """
    _check(arguments)
    try:
        from edgespec.batch.files import only_writer, read_requests
        from edgespec.batch.running import Batch
    except ModuleNotFoundError as error:
        raise InputError(f"batches need the package {error.name}: {installing('serve')}") from error
    from edgespec import bundle as bundles
    from edgespec.store.making import bundle_name

    requests = read_requests(arguments.input)
    bundle = bundles.load(chosen(arguments))
    name = arguments.model_name or bundle_name(bundle)
    batch = Batch(requests, arguments.output, bundle.digest, name)
    with only_writer(arguments.output):
        if arguments.restart:
            batch.forget()
        elif (failed := batch.failures()) is not None:
            batch.forget()  # the last start may have ended just before it did
            return _summary(batch, failed, "were there already")
        return _answer(bundle, batch, batch.journal(), arguments)


def _answer(
    bundle: Bundle, batch: Batch, journal: Journal | None, arguments: argparse.Namespace
) -> int:
    from edgespec.batch.running import require_same
    from edgespec.cli.progress import texts_bar
    from edgespec.llm.load.place import with_sessions

    options = given(arguments, LoadOptions)
    if journal is not None and options["context"] is None:
        options["context"] = journal.start.context  # free memory may be another by now
    if arguments.sessions is None:
        one = LoadOptions(**{**options, "sessions": 1})
        options["sessions"] = with_sessions(bundle, one, arguments.parallel).sessions
    total = len(batch.requests.lines)
    texts = TextsAtOnce(arguments.parallel)
    with loaded(arguments, bundle.path, **options) as llm:
        if journal is None:
            journal = batch.begin(llm)
        else:
            require_same(journal, llm)
        begin = time.perf_counter()
        with (
            noted_interrupts(texts.cancel),
            texts_bar(total, len(journal), lambda: texts.tokens) as report,
        ):
            complete = batch.answer(llm, journal, texts, report)
        seconds = time.perf_counter() - begin
    if not complete:
        journal.close()
        tell(
            f"stopped: {len(journal)} of {total} requests are answered, in {batch.partial}; the "
            "same command goes on from there",
            stream=sys.stderr,
        )
        return INTERRUPTED
    batch.finish(journal)
    speed = f"{texts.tokens} tokens, {texts.tokens / max(seconds, 1e-3):.1f} tokens/s"
    return _summary(batch, journal.failed, speed)


def _summary(batch: Batch, failed: int, more: str) -> int:
    """Prints what the output has, and returns the exit code."""
    errors = f" ({failed} of them errors)" if failed else ""
    tell(
        f"{len(batch.requests.lines)} answers{errors} in {batch.output}: {more}", stream=sys.stderr
    )
    return ERRORS_IN_LINES if failed else 0


def _check(arguments: argparse.Namespace) -> None:
    """Checks the options before a large model is loaded."""
    require_least(arguments, parallel=1, sessions=1)
    output: Path = arguments.output
    if not output.absolute().parent.is_dir():
        raise InputError(f"--output {output}: its folder does not exist: create it first")
    if output.exists():
        if not output.is_file():
            raise InputError(f"--output {output} is not a regular file: give another name")
        if arguments.input.exists() and output.samefile(arguments.input):
            raise InputError(f"--output {output} is the input: give another name")
