"""Parsers of commands: what `--help` shows, and what a misspelt word was meant to be."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import edgespec
from edgespec.cli.spellings import (
    ELSEWHERE,
    INSTEAD,
    MODEL_OPTIONS,
    OF_LLAMA_CPP,
    translated,
)
from edgespec.cli.terminal import tell
from edgespec.errors import InputError, did_you_mean

COMMANDS = {
    "run": "answer or continue a prompt with a model",
    "chat": "talk to a model in the terminal",
    "serve": "serve models on this machine: OpenAI's, Anthropic's and Ollama's APIs, and a page",
    "batch": "answer a file of requests in OpenAI's batch format",
    "export": "make a bundle, which can be shipped, of a checkpoint or a GGUF file",
    "train-draft": "train a draft head for a model",
    "search": "find models by name, and what they would take on this machine",
    "models": "list, name and remove the bundles that were made of models",
    "pull": "download a model and make a bundle of it, without running it",
    "push": "send a draft head to the Hugging Face Hub",
    "inspect": "show what a model is, and what its bundle holds",
    "bench": "compare the speed of draft sources with plain decoding on this machine",
    "eval": "measure how well a model predicts texts, and how far it is from another bundle",
    "devices": "list the devices of this machine that can run models",
    "doctor": "measure how near a model is to the limit of this machine, and say what would help",
    "plan": "show how much memory a model takes, without loading it",
    "completion": "print a script with which a shell completes commands, options and models",
}
"""Commands; each is a module in `commands` (with _ for -) with `configure(parser)` and
`execute(arguments)`."""

SPELLINGS = {"list": ("models", "list"), "rm": ("models", "rm"), "show": ("inspect",)}
"""What users of Ollama type, and the words that it stands for; `help` besides."""

_OPTIONS = ("-h", "--help", "--version")
_BEGINNING = "Begin with `edgespec chat`, which proposes models that suit this machine."
_ABOUT_SPELLINGS = (
    "As in Ollama, `list` and `rm NAME` are `models list` and `models rm NAME`, `show MODEL` is "
    "`inspect MODEL`, and `help COMMAND` is `COMMAND --help`. As in llama.cpp, -m FILE and "
    "-hf owner/name:Q4_K_M name a model, and -c, -t, -ngl, -s and --temp are --context, --threads, "
    "--gpu-layers, --seed and --temperature."
)


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether help or the version is asked for, which nobody waits for."""
    words = {*argv[: [*argv, "--"].index("--")]}
    return not argv or argv[0] == "help" or not words.isdisjoint((*_OPTIONS, "--help-all"))


class Rare(str):
    """The help of an option that `--help` leaves to `--help-all`."""


def module(command: str) -> Any:
    """Returns the module of a command."""
    return import_module(f"edgespec.cli.commands.{command.replace('-', '_')}")


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parses arguments after the program's name.

    Raises:
        InputError: if a command or an option is unknown, or a value is wrong.
        SystemExit: after help and the version.
    """
    return main_parser().parse_args(translated(_spelt_out(argv)))


def _spelt_out(argv: Sequence[str]) -> Sequence[str]:
    """Returns arguments that begin with one of `COMMANDS` or an option."""
    match argv:
        case [] | ["help"] | ["--help-all", *_]:
            return ["--help"]
        case ["help", command, *_]:
            return [*_spelt_out([command])[:1], "--help"]
        case [word, *others] if word in SPELLINGS:
            return [*SPELLINGS[word], *others]
        case [word, *_] if word in ELSEWHERE:
            raise InputError(f"there is no command {word!r}: {ELSEWHERE[word]}")
        case [word, *_] if word in (*MODEL_OPTIONS, *OF_LLAMA_CPP):
            raise InputError(f"{word} needs a command before it, as in `edgespec run {word} …`")
        case [word, *_] if word not in (*COMMANDS, *_OPTIONS):
            like = did_you_mean(word, [*COMMANDS, *SPELLINGS, "help", *_OPTIONS])
            raise InputError(f"there is no command {word!r}{like}: see edgespec --help")
    return argv


def whole_number(text: str) -> int:
    """Reads a number as users type it.

    Raises:
        argparse.ArgumentTypeError: if it is none.
    """
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no whole number") from None


def number(text: str) -> float:
    """Reads a number as `whole_number`."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no number") from None


class _Parser(argparse.ArgumentParser):
    """A parser that raises an error instead of printing its usage and exiting."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Python's own would say "invalid int value".
        self.register("type", int, whole_number)
        self.register("type", float, number)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


class CommandParser(_Parser):
    """A parser that declares its arguments late, so that `edgespec --help` imports no command."""

    def __init__(self, *, command: str, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self._command = command
        self._calls = 0

    def declare(self) -> Sequence[argparse.Action]:
        """Declares the command's arguments, and returns them."""
        module(self._command).configure(self)
        self.add_argument(
            "--help-all", action="help", help="show this help with all options, and exit"
        )
        self.add_argument(
            "-v", "--verbose", action="store_true", help=Rare("print more messages on stderr")
        )
        if any(action.dest == "device" for action in self._actions):
            self.add_argument(
                "--config",
                metavar="FILE",
                default=argparse.SUPPRESS,
                help=Rare(
                    "TOML file with any options of the Python API by their names, such as "
                    "draft or repetition_penalty; the command line goes before it"
                ),
            )
        return self._actions

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses as argparse does, but allows options between positional arguments."""
        self._calls += 1
        if self._calls == 1:
            self.declare()
            self._look_over(args or ())
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

    def _look_over(self, args: Sequence[str]) -> None:
        """Shows help, and checks names of options: a misspelt one may be one that is required."""
        words = args[: args.index("--") if "--" in args else None]
        if {"-h", "--help", "--help-all"} & {*words}:
            tell(super().format_help() if "--help-all" in words else self.format_help(), end="")
            self.exit()
        known = self._option_string_actions
        for name in (word.partition("=")[0] for word in words if " " not in word):
            if name in INSTEAD and name not in known:
                self.error(f"there is no option {name}: {INSTEAD[name]}")
            if name.startswith("--") and name not in known:
                self.error(f"there is no option {name}{did_you_mean(name, known)}")

    def _take_settings(self, args: Sequence[str] | None) -> None:
        """Makes what is in the file of --config the defaults."""
        if "--config" not in self._option_string_actions:
            return
        from edgespec.cli.config_file import settings

        option = _Parser(prog=self.prog, add_help=False, allow_abbrev=False)
        option.add_argument("--config", metavar="FILE")
        file = option.parse_known_args(args)[0].config
        if file is not None:
            self.set_defaults(**settings(file))

    def format_help(self) -> str:
        """Returns the help with the options that most users need."""
        rare = {each: each.help for each in self._actions if isinstance(each.help, Rare)}
        for each in rare:
            each.help = argparse.SUPPRESS
        text = super().format_help()
        for each, told in rare.items():
            each.help = told
        more = f"{len(rare)} more option{'s' * (len(rare) > 1)}"
        return f"{text}\n{more}: {self.prog} --help-all\n"


def main_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    parser = _Parser(
        prog="edgespec",
        description=f"{(edgespec.__doc__ or '').splitlines()[0]} {_BEGINNING}",
        epilog=_ABOUT_SPELLINGS,
    )
    parser.add_argument("--version", action="version", version=f"edgespec {edgespec.__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=CommandParser
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
