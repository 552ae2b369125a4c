"""All errors that a user can cause. Each message names the wrong value and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

# Where things lie in memory helps attackers alone.
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]{6,}")
# What a terminal obeys instead of showing it: control characters but tabs and newlines, and those
# that turn the order of what follows. Halves of a surrogate pair cannot be written at all.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def reason(error: object, most: int = 200) -> str:
    """Returns the message of a foreign error as one line of at most `most` characters."""
    said = _ADDRESS.sub("", " ".join(str(error).split()))
    return printable(said[:most])


def first_line(error: Exception) -> str:
    """Returns what a foreign error says first, or its type if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def printable(text: str) -> str:
    """Returns text that does nothing to a terminal: control characters are written as escapes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def harmless(text: str) -> str:
    """Returns a text of any lines that a terminal shows: what would steer it is written as escapes.

    Unlike `printable`, it leaves all characters that writing needs as they are.
    """
    return _STEERING.sub(lambda found: repr(found[0])[1:-1], text)


def did_you_mean(word: str, known: Iterable[str], most: int = 1) -> str:
    """Returns ` (did you mean x?)` for a word cut short or misspelt; empty if none is like it.

    Args:
        word: the word.
        known: words that it may stand for.
        most: how many are named at most.
    """
    from difflib import get_close_matches  # takes 5 ms, and is needed only here

    names = list(known)
    near = [name for name in names if name.startswith(word)] or get_close_matches(word, names, most)
    if not near:
        return ""
    *others, last = near[:most]
    return f" (did you mean {', '.join(others)}{' or ' * bool(others)}{last}?)"


@contextmanager
def caught_panics() -> Iterator[None]:
    """Makes panics of libraries in Rust errors: as BaseExceptions they would end a thread.

    Raises:
        RuntimeError: instead of a PanicException.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise RuntimeError(reason(error)) from error


def installing(extra: str = "") -> str:
    """Returns the command for edgespec with one of its extras, which no package index has yet."""
    what = f'".[{extra}]"' if extra else "."
    return f"pip install {what} in a checkout of edgespec"


class EdgespecError(Exception):
    """Base of all errors raised on purpose; the CLI prints it and exits with `exit_code`."""

    exit_code = 2


class InputError(EdgespecError):
    """A prompt, option or file from the user that cannot be used."""


class GrammarSizeError(InputError):
    """A grammar or schema that would take too much time, memory or stack."""


class ContextLengthError(InputError):
    """A prompt that does not fit the context."""


class ReentryError(RuntimeError):
    """A call by a signal's handler that would wait for the pass that the handler has broken off.

    It is no error of the pass, from which it may come out.
    """


class _FileError(EdgespecError):
    """An error that quotes what strangers have written: a line that does nothing to a terminal."""

    def __init__(self, message: str) -> None:
        text = printable(message)
        super().__init__(text if len(text) < 900 else f"{text[:500]} … {text[-300:]}")


class CheckpointError(_FileError):
    """A checkpoint that is incomplete, damaged or inconsistent."""


class UnsupportedModelError(CheckpointError):
    """A checkpoint that needs a feature that is not implemented."""


class BundleError(_FileError):
    """A bundle that is missing, damaged, unsafe or of another format version."""


class ToolServerError(_FileError):
    """A server of tools that cannot be started, has ended, or gives no proper answer."""


class ExportError(EdgespecError):
    """An export that could not be finished; nothing is left at the destination."""


class DeviceError(EdgespecError):
    """A device or engine that does not exist on this machine or cannot run the model."""


class MemoryLimitError(EdgespecError):
    """A model or text that does not fit the allowed memory; the message has the numbers."""

    exit_code = 3
