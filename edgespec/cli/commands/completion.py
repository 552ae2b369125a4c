"""`edgespec completion`: a script with which a shell completes commands, options and models."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from edgespec.cli.parsing import COMMANDS, SPELLINGS, CommandParser
from edgespec.cli.terminal import tell
from edgespec.llm.load.options import DRAFTS
from edgespec.system.cachedir import cache_folder

# zsh reads the script of bash by its own bashcompinit.
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
_BASH = """\
_edgespec() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words={commands}
    else
        case "${{COMP_WORDS[1]}} $before" in
{values}
        *)
            case "${{COMP_WORDS[1]}} $word" in
{options}
{words}
            esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _edgespec edgespec"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument(
        "shell",
        choices=_SCRIPTS,
        help="bash: save the script as ~/.local/share/bash-completion/completions/edgespec; fish: "
        "as ~/.config/fish/completions/edgespec.fish; zsh: source it in ~/.zshrc, behind compinit",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    folder = cache_folder("models")  # without which there are no models
    list_models = "true" if folder is None else f"ls {shlex.quote(str(folder))} 2>/dev/null"
    tell(_SCRIPTS[arguments.shell](list_models))
    return 0


class _Command(NamedTuple):
    """A command as it may be spelt, its options, and what its first argument may be."""

    name: str
    options: Sequence[argparse.Action]
    words: Sequence[str]
    takes_models: bool


def _declared() -> Iterator[_Command]:
    for name in (*COMMANDS, *SPELLINGS):
        first, *given = SPELLINGS.get(name, (name,))
        declared = CommandParser(command=first).declare()
        actions = [each for each in declared if each.help != argparse.SUPPRESS]
        others = [each for each in actions if not each.option_strings]
        words = [str(word) for each in others if not given for word in each.choices or ()]
        models = any(each.dest in ("model", "models", "names") for each in others)
        yield _Command(name, [each for each in actions if each.option_strings], words, models)
    yield _Command("help", (), (*COMMANDS, *SPELLINGS), False)


def _values(option: argparse.Action, models: str) -> str:
    """Returns the words that may follow an option, with a shell's command for names of models."""
    if "SOURCE" in str(option.metavar):
        return " ".join(DRAFTS) + f" {models}" * ("MODEL" in str(option.metavar))
    return " ".join(map(str, option.choices or ()))


def _bash(list_models: str) -> str:
    models = f"$({list_models})"
    commands = list(_declared())
    values = dict[str, list[str]]()
    options = []
    words = []
    for each in commands:
        names = [(option, name) for option in each.options for name in option.option_strings]
        for option, name in names:
            if option.nargs != 0:
                values.setdefault(_values(option, models), []).append(f'"{each.name} {name}"')
        options.append(f'            "{each.name} -"*) words="{" ".join(n for _, n in names)}" ;;')
        found = " ".join([*each.words, models] if each.takes_models else each.words)
        words.append(f'            "{each.name} "*) words="{found}" ;;')
    cases = [f'        {" | ".join(given)}) words="{found}" ;;' for found, given in values.items()]
    return _BASH.format(
        commands=f'"{" ".join(each.name for each in commands)}"',
        values="\n".join(cases),
        options="\n".join(options),
        words="\n".join(words),
    )


def _fish(list_models: str) -> str:
    models = f"({list_models})"
    lines = []
    for each in _declared():
        told = COMMANDS.get(SPELLINGS.get(each.name, (each.name,))[0], "show a command's help")
        lines.append(f"-n __fish_use_subcommand -f -a {each.name} -d {shlex.quote(told)}")
        here = f"-n '__fish_seen_subcommand_from {each.name}'"
        words = " ".join([*each.words, models] if each.takes_models else each.words)
        lines.append(f"{here} -a {shlex.quote(words)}")
        for option in each.options:
            spelt = (
                f"-{'l' if n[1] == '-' else 's'} {n.lstrip('-')}" for n in option.option_strings
            )
            found = _values(option, models)
            told = re.split(r"[;(]|\. ", option.help or "")[0]
            value = "" if option.nargs == 0 else f"-x -a {shlex.quote(found)}" if found else "-r"
            told = shlex.quote(told.replace("%%", "%").strip())
            lines.append(f"{here} {' '.join(spelt)} {value} -d {told}")
    return "\n".join(f"complete -c edgespec {line}" for line in lines)


_SCRIPTS = {"bash": _bash, "zsh": lambda models: _ZSH + _bash(models), "fish": _fish}
