"""The command line. Here all errors become one or two lines on stderr and an exit code."""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import edgespec
from edgespec.errors import EdgespecError, InputError, MemoryLimitError

COMMANDS = {
    "run": "complete a prompt with a bundle",
    "chat": "talk to a model in the terminal",
    "serve": "answer programs that speak OpenAI's API, on this machine",
    "export": "make a bundle from a checkpoint",
    "inspect": "show what a bundle holds",
    "profile": "measure what calls of a bundle's models cost on this machine",
    "bench": "compare draft sources with plain decoding on this machine",
    "eval": "measure a bundle's perplexity, and how far it is from another bundle",
    "devices": "show what this machine can run models on",
    "plan": "show what memory a bundle takes, without loading it",
}
"""Each is a module of this package with `configure(parser)` and `execute(arguments) -> int`."""

# What a shell reports for a process that the signal ended: a text was cut, scripts should know.
INTERRUPTED = 128 + 2
_PIPE_CLOSED = 128 + 13
_BAD_INPUT = EdgespecError.exit_code
_BUG = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: what follows the program's name; None: that of this process.

    Returns:
        0; 2 for bad input; 3 for what does not fit memory; 130 if interrupted; 141 if nobody reads
        the output any more; 1 for a fault of ours.

    Raises:
        SystemExit: after `--help` and `--version`.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Pipes and files have a code page on Windows, and what it lacks would be lost.
        text = not sys.stdout.isatty() and "PYTHONIOENCODING" not in os.environ
        sys.stdout.reconfigure(encoding="utf-8" if text else None, errors="replace")
    if sys.stderr is None:  # closed: print would take stdout in its place
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    log = logging.getLogger("edgespec")
    try:
        with _logged_to_stderr(log):
            arguments = _parser().parse_args(argv)
            log.setLevel(logging.INFO if arguments.verbose else logging.WARNING)
            command = import_module(f"edgespec.cli.commands.{arguments.command}")
            code: int = command.execute(arguments)
            print(end="", flush=True)
            return code
    except EdgespecError as error:
        return _fail(_one_line(str(error)), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # rich makes the one of the other
        if BrokenPipeError not in (type(error), type(error.__context__)):
            raise
        _abandon_stdout()
        return _PIPE_CLOSED
    except OSError as error:
        return _unreadable(error)
    except Exception as error:
        return _fail(*_unexpected(error))


def _unreadable(error: OSError) -> int:
    """The exit code for a file that cannot be read, or output that cannot be written."""
    if error.filename is not None:
        return _fail(_one_line(f"{error.filename}: {error.strerror or error}"), _BAD_INPUT)
    _abandon_stdout()
    if sys.platform == "win32" and error.errno == errno.EINVAL:
        return _PIPE_CLOSED  # so Windows has it (python/cpython#79935)
    return _fail(_one_line(f"{error.strerror or error}"), _BAD_INPUT)


def _unexpected(error: Exception) -> tuple[str, int]:
    """What to say of an error that nobody foresaw, and the exit code."""
    name, text = type(error).__name__, _one_line(str(error))
    if isinstance(error, MemoryError):
        return (
            f"memory ran out ({text or name}): close other programs, or see what takes how much "
            "and fits with `edgespec plan`",
            MemoryLimitError.exit_code,
        )
    origin = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"internal error: {name}: {text}\n"
        f"at {origin.filename}:{origin.lineno}: please report it with the command you ran",
        _BUG,
    )


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing its usage and leaving."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


class _CommandParser(_Parser):
    """Learns its arguments when they are needed, so that `edgespec --help` imports no command."""

    def __init__(self, *, command: str, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self._command = command
        self._calls = 0

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's, with options allowed between positional arguments."""
        self._calls += 1
        if self._calls == 1:
            import_module(f"edgespec.cli.commands.{self._command}").configure(self)
            self.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")
            found, unknown = self.parse_known_intermixed_args(args, namespace)
            if unknown:  # or whoever has these parsed would name its own help
                self.error(f"unrecognized arguments: {' '.join(unknown)}")
            return found, unknown
        if self._calls == 2 and args is not None and "--" in args:
            # Until 3.12.7 and 3.13.0 that asks here for the options, then for what these leave,
            # and loses the `--` that is part of it.
            behind = args.index("--")
            options, left = super().parse_known_args(args[:behind], namespace)
            return options, [*left, *args[behind:]]
        return super().parse_known_args(args, namespace)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="edgespec", description=(edgespec.__doc__ or "").split("\n")[0])
    parser.add_argument("--version", action="version", version=f"edgespec {edgespec.__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser
    )
    for name, summary in COMMANDS.items():
        commands.add_parser(
            # Not capitalize(), which would make OpenAI and API lower case.
            name,
            command=name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
        )
    return parser


class _StderrLines(logging.Handler):
    """One line a record, on what `sys.stderr` is at the time: a progress bar may hold it."""

    def emit(self, record: logging.LogRecord) -> None:
        message = _one_line(record.getMessage())
        print(f"edgespec: {record.levelname.lower()}: {message}", file=sys.stderr)


@contextmanager
def _logged_to_stderr(log: logging.Logger) -> Iterator[None]:
    handler, level = _StderrLines(), log.level
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _fail(message: str, code: int) -> int:
    print(f"edgespec: {message}", file=sys.stderr)
    return code


def _one_line(text: str) -> str:
    return " ".join(map(str.strip, text.splitlines()))  # other spaces may be a file name's


def _abandon_stdout() -> None:
    """Throw away what could not be written, or the interpreter tries again when it ends."""
    with suppress(AttributeError, io.UnsupportedOperation):  # closed, or no real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
