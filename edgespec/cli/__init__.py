"""The command line, which turns all errors into one or two lines on stderr and an exit code."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from edgespec.cli.parsing import asks_for_help, module, parse_arguments
from edgespec.cli.terminal import tell
from edgespec.cli.waiting import notice, waiting
from edgespec.errors import EdgespecError, MemoryLimitError, printable

# The exit codes that a shell reports for a process ended by SIGINT or SIGPIPE.
INTERRUPTED = 128 + 2
_PIPE_CLOSED = 128 + 13
ERRORS_IN_LINES = 4
"""Exit code of `batch` if some requests could not be answered."""
_BAD_INPUT = EdgespecError.exit_code
_BUG = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments after the program's name; None for those of this process.

    Returns:
        The exit code: 0 for success, 1 for a bug, 2 for bad input, 3 if memory does not suffice,
        4 if some requests of a batch failed, 130 if interrupted, 141 if the reader of the output
        has gone.

    Raises:
        SystemExit: after `--help` and `--version`.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # On Windows, pipes and files would use a code page that lacks many characters.
        text = not sys.stdout.isatty() and "PYTHONIOENCODING" not in os.environ
        sys.stdout.reconfigure(encoding="utf-8" if text else None, errors="replace")
    if sys.stderr is None:  # closed: print would write to stdout instead
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    log = logging.getLogger("edgespec")
    try:
        with _logged_to_stderr(log):
            given = sys.argv[1:] if argv is None else argv
            with nullcontext() if asks_for_help(given) else waiting("edgespec starts"):
                arguments = parse_arguments(given)
                log.setLevel(logging.INFO if arguments.verbose else logging.WARNING)
            code: int = module(arguments.command).execute(arguments)
            tell(end="")
            return code
    except EdgespecError as error:
        return _fail(_one_line(str(error)), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # rich turns a BrokenPipeError into a SystemExit
        if BrokenPipeError not in (type(error), type(error.__context__)):
            raise
        _abandon_stdout()
        return _PIPE_CLOSED
    except OSError as error:
        return _unreadable(error)
    except Exception as error:
        return _fail(*_unexpected(error))


def _unreadable(error: OSError) -> int:
    """Reports a file that cannot be read or output that cannot be written; returns the code."""
    if error.filename is not None:
        return _fail(_one_line(f"{error.filename}: {error.strerror or error}"), _BAD_INPUT)
    _abandon_stdout()
    if sys.platform == "win32" and error.errno == errno.EINVAL:
        return _PIPE_CLOSED  # Windows reports a closed pipe as EINVAL (python/cpython#79935)
    return _fail(_one_line(f"{error.strerror or error}"), _BAD_INPUT)


def _unexpected(error: Exception) -> tuple[str, int]:
    """Returns the message and the exit code for an unexpected error."""
    name = type(error).__name__
    text = _one_line(str(error))
    mapped = isinstance(error, ImportError) and "failed to map segment" in text
    if isinstance(error, MemoryError) or mapped:
        return (
            f"memory ran out ({text or name}): close other programs, or run `edgespec plan` to see "
            "what needs how much memory and what fits",
            MemoryLimitError.exit_code,
        )
    origin = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"internal error: {name}: {text}\n"
        f"at {origin.filename}:{origin.lineno}: please report it with the command you ran",
        _BUG,
    )


class _StderrLines(logging.Handler):
    """Prints one line per record to the current `sys.stderr`, which a progress bar may replace."""

    def emit(self, record: logging.LogRecord) -> None:
        message = _one_line(record.getMessage())
        notice(f"edgespec: {record.levelname.lower()}: {message}")


@contextmanager
def _logged_to_stderr(log: logging.Logger) -> Iterator[None]:
    handler = _StderrLines()
    level = log.level
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _fail(message: str, code: int) -> int:
    tell(f"edgespec: {message}", stream=sys.stderr)
    return code


def _one_line(text: str) -> str:
    # Spaces inside file names stay; names from files of strangers may hold escapes for terminals.
    return printable(" ".join(map(str.strip, text.splitlines())))


def _abandon_stdout() -> None:
    """Discards unwritten output, which the interpreter would try to write again at its end."""
    with suppress(AttributeError, io.UnsupportedOperation):  # closed, or not a real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
