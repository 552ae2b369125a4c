"""The command line, which turns all errors into one or two lines on stderr and an exit code."""

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
from edgespec.cli.waiting import clear_line, waiting
from edgespec.errors import EdgespecError, InputError, MemoryLimitError, printable

COMMANDS = {
    "run": "complete a prompt with a model",
    "chat": "talk to a model in the terminal",
    "serve": "serve a model on this machine with OpenAI's API",
    "batch": "answer a file of requests in OpenAI's batch format",
    "export": "make a bundle to ship from a checkpoint",
    "train-draft": "train a draft head for a bundle's target",
    "models": "list, name and remove the bundles that were made of models",
    "inspect": "show the contents of a bundle",
    "bench": "compare the speed of draft sources with plain decoding on this machine",
    "eval": "measure a bundle's perplexity, and its distance from another bundle",
    "devices": "list the devices of this machine that can run models",
    "doctor": "measure how near a model is to the limit of this machine, and say what would help",
    "plan": "show how much memory a bundle needs, without loading it",
}
"""Commands; each is a module in `commands` (with _ for -) with `configure(parser)` and
`execute(arguments)`."""

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
            with waiting("edgespec starts"):
                arguments = _parser().parse_args(argv)
                log.setLevel(logging.INFO if arguments.verbose else logging.WARNING)
                command = _module(arguments.command)
            code: int = command.execute(arguments)
            print(end="", flush=True)
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


def _module(command: str) -> Any:
    return import_module(f"edgespec.cli.commands.{command.replace('-', '_')}")


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
    name, text = type(error).__name__, _one_line(str(error))
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


class _Parser(argparse.ArgumentParser):
    """A parser that raises an error instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


class _CommandParser(_Parser):
    """A parser that declares its arguments late, so that `edgespec --help` imports no command."""

    def __init__(self, *, command: str, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self._command = command
        self._calls = 0

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses as argparse does, but allows options between positional arguments."""
        self._calls += 1
        if self._calls == 1:
            _module(self._command).configure(self)
            self.add_argument(
                "-v", "--verbose", action="store_true", help="print more messages on stderr"
            )
            if any(action.dest == "device" for action in self._actions):
                self._take_settings(args)
            found, unknown = self.parse_known_intermixed_args(args, namespace)
            if unknown:  # otherwise the main parser would refer to its own help
                self.error(f"unrecognized arguments: {' '.join(unknown)}")
            return found, unknown
        if self._calls == 2 and args is not None and "--" in args:
            # Up to Python 3.12.7 and 3.13.0, parse_known_intermixed_args parses the options here
            # first and then the rest, but loses the `--`.
            behind = args.index("--")
            options, left = super().parse_known_args(args[:behind], namespace)
            return options, [*left, *args[behind:]]
        return super().parse_known_args(args, namespace)

    def _take_settings(self, args: Sequence[str] | None) -> None:
        """Declares --config, and makes what is in the file the defaults."""
        from edgespec.cli.arguments import settings

        option = _Parser(prog=self.prog, add_help=False, allow_abbrev=False)
        option.add_argument(
            "--config", metavar="FILE",
            help="TOML file with any options of the Python API by their names, such as draft or "
            "repetition_penalty; the command line goes before it",
        )  # fmt: skip
        file = option.parse_known_args(args)[0].config
        if file is not None:
            self.set_defaults(**settings(file))
        self._add_container_actions(option)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="edgespec", description=(edgespec.__doc__ or "").split("\n")[0])
    parser.add_argument("--version", action="version", version=f"edgespec {edgespec.__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser
    )
    for name, summary in COMMANDS.items():
        commands.add_parser(
            name,
            command=name,
            help=summary,
            # Not capitalize(), which would make OpenAI and API lower case.
            description=f"{summary[0].upper()}{summary[1:]}.",
        )
    return parser


class _StderrLines(logging.Handler):
    """Prints one line per record to the current `sys.stderr`, which a progress bar may replace."""

    def emit(self, record: logging.LogRecord) -> None:
        message = _one_line(record.getMessage())
        clear_line()
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
    # Spaces inside file names stay; names from files of strangers may hold escapes for terminals.
    return printable(" ".join(map(str.strip, text.splitlines())))


def _abandon_stdout() -> None:
    """Discards unwritten output, which the interpreter would try to write again at its end."""
    with suppress(AttributeError, io.UnsupportedOperation):  # closed, or not a real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
