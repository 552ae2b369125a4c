"""Finds the bundle and the prompt among the command line's arguments."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from edgespec.bundle import MANIFEST
from edgespec.errors import InputError
from edgespec.system.files import decoded, read_utf8

STDIN = "-"


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares BUNDLE, PROMPT, -p and -f."""
    parser.add_argument(
        "bundle", nargs="?", metavar="BUNDLE",
        help="folder of a bundle (default: the embedded pair)",
    )  # fmt: skip
    parser.add_argument(
        "words", nargs="?", metavar="PROMPT",
        help="the text to continue; read from stdin if it is - or missing",
    )  # fmt: skip
    parser.add_argument("-p", "--prompt", metavar="PROMPT", help="the prompt, as an option")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a UTF-8 file")


def bundle_and_prompt(arguments: argparse.Namespace) -> tuple[Path | None, str]:
    """Returns the bundle's folder (None for the embedded pair) and the prompt.

    A single argument is the bundle if the prompt is given by an option, or if it is a bundle's
    folder; otherwise it is the prompt.

    Raises:
        InputError: if there is no prompt, more than one, or one that is not UTF-8.
        OSError: if the file cannot be read.
    """
    word, prompt, file = arguments.bundle, arguments.words, arguments.file
    options = [value for value in (arguments.prompt, file) if value is not None]
    if len(options) > 1 or (options and prompt is not None):
        raise InputError("more than one prompt is given: use only one of PROMPT, -p and -f")
    if options:
        _require_path(word)
    elif prompt is None and word is not None and not _is_bundle(word):
        _refuse_folder(word)
        word, prompt = None, word
    bundle = None if word is None else Path(word)
    if arguments.prompt is not None:
        return bundle, arguments.prompt
    if file is not None and file != STDIN:
        return bundle, read_utf8(Path(file))
    if prompt is not None and prompt != STDIN:
        return bundle, prompt
    return bundle, _read_stdin(asked=STDIN in (prompt, file))


def _require_path(word: str | None) -> None:
    """Checks that a word besides -p or -f exists on disk; otherwise it may be a second prompt."""
    if word is not None and not _exists(word):
        raise InputError(
            f"{word!r} is not a bundle's folder, and the prompt is given by an option: "
            "use only one of PROMPT, -p and -f"
        )


def _refuse_folder(word: str) -> None:
    if _exists(word) and Path(word).is_dir():
        raise InputError(
            f"{word} is a folder without {MANIFEST}: give a bundle and a prompt, "
            f"or -p {word!r} if this is the prompt"
        )


def _is_bundle(word: str) -> bool:
    return _exists(word) and (Path(word) / MANIFEST).is_file()


def _exists(word: str) -> bool:
    try:
        return word != "" and Path(word).exists()
    except (OSError, ValueError):  # too long for a path, or has a NUL character
        return False


def _read_stdin(asked: bool) -> str:
    if sys.stdin is None or (sys.stdin.isatty() and not asked):
        raise InputError("there is no prompt: give PROMPT, -p, -f or text on stdin")
    return decoded(sys.stdin.buffer.read(), "stdin")
