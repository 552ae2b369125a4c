"""Finds the model and the prompt among the command line's arguments."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import BinaryIO

from edgespec.cli.arguments import add_model
from edgespec.cli.parsing import Rare
from edgespec.errors import InputError
from edgespec.store.model_ref import find_model, looks_like_model
from edgespec.system.files import decode_text

STDIN = "-"
_MOST_BYTES = 64 << 20  # of a prompt, far more than any context holds


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares MODEL, PROMPT, -p and -f."""
    add_model(parser)
    parser.add_argument(
        "words",
        nargs="*",
        metavar="PROMPT",
        help="what a chat model answers, or the text that another one continues; read from stdin "
        "if it is - or missing, and put behind what is piped in beside it. On a terminal, a chat "
        "model without a prompt chats",
    )
    parser.add_argument("-p", "--prompt", metavar="PROMPT", help=Rare("the prompt, as an option"))
    parser.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a UTF-8 file")


def take_prompt(arguments: argparse.Namespace) -> str | None:
    """Returns the prompt, and leaves the model's name or None in `arguments.model`.

    A single argument is the prompt if it is - or has spaces in it and is no file or folder, and if
    no option gives a prompt; otherwise it is the model. What is piped in goes before the prompt.

    Returns:
        The prompt; None if there is none, and stdin is a terminal that nobody asked to read.

    Raises:
        InputError: if there is more than one prompt or one that is not UTF-8, or no such model.
        OSError: if the file cannot be read.
    """
    word = arguments.model
    file = arguments.file
    prompt = " ".join(arguments.words) if arguments.words else None
    options = [value for value in (arguments.prompt, file) if value is not None]
    if len(options) > 1 or (options and prompt is not None):
        raise InputError("more than one prompt is given: use only one of PROMPT, -p and -f")
    alone = word is not None and prompt is None and not options
    spaced = alone and (word in ("", STDIN) or re.search(r"\s", word))
    if spaced and not looks_like_model(word):
        arguments.model = None
        prompt = word
    elif word is not None:
        try:
            find_model(word)
        except InputError as error:
            how = f"; or -p {word!r}, if this is the prompt" if alone else ""
            raise InputError(f"{error}{how}") from None
    if STDIN in (prompt, file):
        return _piped(asked=True)
    typed = prompt if arguments.prompt is None else arguments.prompt
    if file is not None:
        with Path(file).open("rb") as stream:  # which may be a pipe, as shells make of <(…)
            typed = _text_of(stream, file)
    piped = _piped(asked=False) if typed is None else _beside()
    if piped and piped.strip() and typed:
        return "\n\n".join([piped.strip("\n"), typed])
    return piped if typed is None else typed


def _piped(asked: bool) -> str | None:
    """Returns what stdin holds; None if it is a terminal that nobody asked to read."""
    if sys.stdin is None or (sys.stdin.isatty() and not asked):
        return None
    return _text_of(sys.stdin.buffer, "stdin")


def _text_of(stream: BinaryIO, name: str) -> str:
    """Returns the text that a stream holds, whose name errors tell."""
    read = stream.read(_MOST_BYTES + 1)
    if len(read) > _MOST_BYTES:
        raise InputError(f"{name} has more than {_MOST_BYTES >> 20} MiB: give a shorter text")
    return decode_text(read, name)


def _beside() -> str | None:
    """Returns what is piped in beside a prompt, if stdin can be read at all."""
    try:
        return _piped(asked=False)
    except OSError:  # as nohup leaves it
        return None
